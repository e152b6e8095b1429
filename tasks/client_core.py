"""What both clients know and decide without a connection."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_herd.errors import FieldError, InvalidJob, QueueFull
from llama_herd.tasks.answers import Submission, Submitted
from llama_herd.tasks.call import Call
from llama_herd.tasks.connection import checked_url
from llama_herd.tasks.job import GenerationJob, is_job_id
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus


class Order(NamedTuple):
    """A checked job on its way into the ledger."""

    job_id: str
    queue: str
    call: Call[Submitted]


@dataclass(frozen=True, slots=True)
class Status:
    """How the queue stands: messages of one model's queue, jobs that wait and run, workers that live."""

    queue: str
    depth: int
    pending: int
    running: int
    workers: list[WorkerStatus]


class ClientCore:
    """Settings, keys and checks of a client."""

    def __init__(
        self,
        redis_url: str | None,
        tenant: str | None,
        model: str | None,
        settings: Settings | None,
        max_queue: int,
    ) -> None:
        self.settings = _settings(settings, redis_url=redis_url, tenant=tenant, model_name=model)
        self.url = checked_url(self.settings.redis_url)
        self.ledger = Ledger.of(self.settings, max_queue=max_queue)

    @property
    def queue(self) -> str:
        """The queue of the client's own model."""
        return queue_name(self.settings.default_model)

    def order(self, job: GenerationJob | None, fields: Mapping[str, Any], job_id: str | None) -> Order:
        """Check a job and name it. Raises InvalidJob."""
        if job is not None and fields:
            raise TypeError("give a GenerationJob or its fields, not both")
        job_id = str(uuid.uuid4()) if job_id is None else checked_id(job_id)
        job = GenerationJob.parse(fields if job is None else job, self.settings)
        job = job.model_copy(update={"model": job.model or self.settings.default_model})
        queue = queue_name(job.model or self.settings.default_model)
        return Order(job_id, queue, self.ledger.submit(job_id, job, Envelope.of(job_id, queue)))

    def accepted(self, order: Order, answer: Submitted) -> str:
        """The id of an accepted job. Raises QueueFull, and InvalidJob when the id names another job."""
        match answer.kind:
            case Submission.QUEUE_FULL:
                raise QueueFull(
                    f"queue {order.queue} holds {answer.depth} jobs and may hold {self.ledger.max_queue}. "
                    "Fix: submit again later, or start more workers"
                )
            case Submission.CONFLICT:
                raise InvalidJob([FieldError("job_id", "already names another job")])
        return order.job_id


def _settings(settings: Settings | None, **given: str | None) -> Settings:
    """`settings`, by default those of the environment, with what was given in their place."""
    known = {} if settings is None else settings.model_dump()
    return Settings.read(**known | {name: value for name, value in given.items() if value is not None})


def checked_id(job_id: str) -> str:
    """`job_id` if it can name a job. Raises InvalidJob."""
    if not is_job_id(job_id):
        raise InvalidJob(
            [FieldError("job_id", "must be 1 to 128 letters, digits, dots, underscores, colons or dashes")]
        )
    return job_id
