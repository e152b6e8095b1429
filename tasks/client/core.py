"""What both clients know and decide without a connection."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.client.dead import Dead
from llama_herd.tasks.client.submission import NewJob, checked_id, enqueue, id_of_key
from llama_herd.tasks.connection import checked_url
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Dialogue
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus


@dataclass(frozen=True, slots=True)
class Status:
    """How the queue stands: messages of one model's queue, jobs that wait and run, workers that live.

    batches: those that run or ended within the hour.
    """

    queue: str
    depth: int
    pending: int
    running: int
    workers: list[WorkerStatus]
    batches: list[BatchStatus]


class ClientCore:
    """Settings, keys and checks of a client."""

    def __init__(
        self,
        redis_url: str | None,
        tenant: str | None,
        model: str | None,
        settings: Settings | None,
        max_queue: int | None,
    ) -> None:
        self.settings = _settings(
            settings, redis_url=redis_url, tenant=tenant, model_name=model, max_queue=max_queue
        )
        self.url = checked_url(self.settings.redis_url)
        self.ledger = Ledger.of(self.settings)
        self.dead = Dead(self.settings, self.ledger, DeadLetters.of(self.settings))

    @property
    def queue(self) -> str:
        """The queue of the client's own model."""
        return queue_name(self.settings.default_model, self.settings.tenant)

    def submit(
        self,
        job: GenerationJob | None,
        fields: Mapping[str, Any],
        job_id: str | None,
        idempotency_key: str | None,
    ) -> Dialogue[str]:
        """Check, name and enqueue a job. Raises InvalidJob, JobConflict, QueueFull."""
        if job is not None and fields:
            raise TypeError("give a GenerationJob or its fields, not both")
        if job_id is not None and idempotency_key is not None:
            raise TypeError("give a job_id or an idempotency_key, not both")
        job = GenerationJob.parse(fields if job is None else job, self.settings)
        job = job.model_copy(update={"model": job.model or self.settings.default_model})
        queue = queue_name(job.model or self.settings.default_model, self.settings.tenant)
        name = "job_id"
        if idempotency_key is not None:
            name, job_id = "idempotency_key", id_of_key(self.settings.tenant, idempotency_key)
        elif job_id is None:
            job_id = str(uuid.uuid4())
        new = NewJob(checked_id(job_id), name, Envelope.of(job_id, queue), job)
        return (yield from enqueue(self.ledger, new))


def _settings(settings: Settings | None, **given: str | int | None) -> Settings:
    """`settings`, by default those of the environment, with what was given in their place."""
    known = {} if settings is None else settings.model_dump()
    return Settings.read(**known | {name: value for name, value in given.items() if value is not None})
