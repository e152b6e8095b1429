"""A job-queue batch inference worker: Celery and Redis outside, one Llama a device inside.

from llama_herd import Client, AsyncClient
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` makes them public for type checkers
    from llama_herd.error_code import ErrorCode as ErrorCode
    from llama_herd.errors import (
        BadInput as BadInput,
        DeadlineExceeded as DeadlineExceeded,
        GenerationError as GenerationError,
        HerdError as HerdError,
        InvalidJob as InvalidJob,
        JobConflict as JobConflict,
        JobNotFound as JobNotFound,
        JobRunning as JobRunning,
        KeptFull as KeptFull,
        NotPermitted as NotPermitted,
        NotReplicated as NotReplicated,
        QueueFull as QueueFull,
        RecordUnreadable as RecordUnreadable,
        RedisUnavailable as RedisUnavailable,
        SettingsError as SettingsError,
        StreamRewritten as StreamRewritten,
        UnservedModel as UnservedModel,
        WorkerNotFound as WorkerNotFound,
    )
    from llama_herd.tasks.client.async_client import AsyncClient as AsyncClient
    from llama_herd.tasks.client.batch.batch_row import BatchItem as BatchItem, BatchRow as BatchRow
    from llama_herd.tasks.client.client import Client as Client
    from llama_herd.tasks.client.embedding import Embeddings as Embeddings
    from llama_herd.tasks.client.herds import Herds as Herds
    from llama_herd.tasks.client.job_status import JobStatus as JobStatus
    from llama_herd.tasks.client.lots import SubmitOutcome as SubmitOutcome
    from llama_herd.tasks.client.place_watch import Queued as Queued
    from llama_herd.tasks.client.tenant_status import QueueStatus as QueueStatus, Status as Status
    from llama_herd.tasks.ledger.answers import Place as Place
    from llama_herd.tasks.protocol.batch_status import BatchStatus as BatchStatus
    from llama_herd.tasks.protocol.chat import ChatMessage as ChatMessage
    from llama_herd.tasks.protocol.embedding_job import EmbeddingJob as EmbeddingJob
    from llama_herd.tasks.protocol.events import (
        End as End,
        Event as Event,
        Started as Started,
        Token as Token,
        Vectors as Vectors,
    )
    from llama_herd.tasks.protocol.job import GenerationJob as GenerationJob
    from llama_herd.tasks.protocol.job_fields import SamplingFields as SamplingFields
    from llama_herd.tasks.protocol.ranking_job import Rank as Rank, RankingJob as RankingJob
    from llama_herd.tasks.protocol.result import Result as Result
    from llama_herd.tasks.protocol.sampling import SamplingParams as SamplingParams
    from llama_herd.tasks.protocol.worker_status import WorkerStatus as WorkerStatus
    from llama_herd.tasks.settings import Settings as Settings

#: The public names, by the module that each comes from.
_HOMES = {
    "error_code": ("ErrorCode",),
    "errors": (
        "BadInput",
        "DeadlineExceeded",
        "GenerationError",
        "HerdError",
        "InvalidJob",
        "JobConflict",
        "JobNotFound",
        "JobRunning",
        "NotPermitted",
        "NotReplicated",
        "KeptFull",
        "QueueFull",
        "RecordUnreadable",
        "RedisUnavailable",
        "SettingsError",
        "StreamRewritten",
        "UnservedModel",
        "WorkerNotFound",
    ),
    "tasks.protocol.batch_status": ("BatchStatus",),
    "tasks.protocol.chat": ("ChatMessage",),
    "tasks.client.async_client": ("AsyncClient",),
    "tasks.client.batch.batch_row": ("BatchItem", "BatchRow"),
    "tasks.client.client": ("Client",),
    "tasks.client.herds": ("Herds",),
    "tasks.client.job_status": ("JobStatus",),
    "tasks.client.lots": ("SubmitOutcome",),
    "tasks.client.tenant_status": ("QueueStatus", "Status"),
    "tasks.client.place_watch": ("Queued",),
    "tasks.client.embedding": ("Embeddings",),
    "tasks.protocol.embedding_job": ("EmbeddingJob",),
    "tasks.protocol.ranking_job": ("Rank", "RankingJob"),
    "tasks.protocol.events": ("End", "Event", "Started", "Token", "Vectors"),
    "tasks.protocol.job": ("GenerationJob",),
    "tasks.protocol.job_fields": ("SamplingFields",),
    "tasks.ledger.answers": ("Place",),
    "tasks.protocol.result": ("Result",),
    "tasks.protocol.sampling": ("SamplingParams",),
    "tasks.settings": ("Settings",),
    "tasks.protocol.worker_status": ("WorkerStatus",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
