"""The API for other services: `from llama_herd.tasks import Client, GenerationJob, SamplingParams`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_herd.tasks.client.async_client import AsyncClient
    from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.client.herds import Herds
    from llama_herd.tasks.client.lots import SubmitOutcome
    from llama_herd.tasks.protocol.job import GenerationJob
    from llama_herd.tasks.protocol.job_fields import SamplingFields
    from llama_herd.tasks.protocol.result import Result
    from llama_herd.tasks.protocol.sampling import SamplingParams

__all__ = [
    "AsyncClient",
    "BatchItem",
    "BatchRow",
    "Client",
    "GenerationJob",
    "Herds",
    "Result",
    "SamplingFields",
    "SamplingParams",
    "SubmitOutcome",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("llama_herd"), name)
