"""What both clients know and decide without a connection."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from llama_herd.errors import FieldError, InvalidJob, JobConflict, JobNotFound, QueueFull
from llama_herd.tasks.answers import DeadJob, DeadLetter, Record, Revival, Submission, Submitted
from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.call import Talk
from llama_herd.tasks.connection import checked_url
from llama_herd.tasks.dead_letters import DeadLetters, is_letter_number
from llama_herd.tasks.events import Event
from llama_herd.tasks.job import GenerationJob, is_job_id
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.purge import purge
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus

#: Of the ids that are made of idempotency keys.
_NAMESPACE = uuid.UUID("5c1a7e6e-50a5-5d0e-9d1f-0e6f6c6c616d")
MAX_KEY_CHARS = 255

#: Bounds of the advice when to submit again.
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class Order(NamedTuple):
    """A checked job on its way into the ledger. `name` is what it was given to be known by."""

    job_id: str
    name: str
    envelope: Envelope
    job: GenerationJob


class History(NamedTuple):
    """All that is kept of a job; `body` is the job as it was accepted, with its prompt."""

    record: Record
    events: list[Event]
    body: dict[str, Any]


class Retried(NamedTuple):
    """What came of a retry: the id of the new job, None for a message; and the queue it went to."""

    job_id: str | None
    queue: str


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
        self._letters = DeadLetters.of(self.settings)

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
    ) -> Talk[str]:
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
            name, job_id = "idempotency_key", self._id_of("key", checked_key(idempotency_key))
        elif job_id is None:
            job_id = str(uuid.uuid4())
        order = Order(checked_id(job_id), name, Envelope.of(job_id, queue), job)
        return (yield from self._accepted(order))

    def dead(self, limit: int) -> Talk[list[DeadJob | DeadLetter]]:
        """Jobs that were given up and messages that could not be accepted, the last one first."""
        found: list[DeadJob | DeadLetter] = [
            *(yield self._letters.jobs(limit)),
            *(yield self._letters.letters(limit)),
        ]
        return sorted(found, key=lambda one: one.at_ms, reverse=True)[:limit]

    def retry(self, name: str) -> Talk[Retried]:
        """Run a job that was given up again, or push a message back.

        Raises JobNotFound, InvalidJob, QueueFull.
        """
        if (yield self._letters.is_quarantined(name)):
            return (yield from self._run_again(name))
        letter = yield from self.letter(name)
        if letter is None or (yield self._letters.revive(name)) is Revival.UNKNOWN:
            raise JobNotFound(f"no job and no message {name} among the dead: see herd dead list")
        if not letter.is_whole:
            message = f"of {letter.num_bytes} bytes only {len(letter.raw)} were kept"
            raise InvalidJob([FieldError(f"message {name}", message)])
        return Retried(None, letter.queue)

    def letter(self, number: str) -> Talk[DeadLetter | None]:
        """A dead letter by its number; None when there is none."""
        return (yield self._letters.letter(number)) if is_letter_number(number) else None

    def drop(self, name: str) -> Talk[None]:
        """Forget a dead letter, or a job that was given up. Raises JobNotFound."""
        if is_letter_number(name) and (yield self._letters.drop(name)):
            return
        yield from purge(self.ledger, checked_id(name), self.queue)

    def history(self, job_id: str) -> Talk[History]:
        """All that is kept of a job. Raises JobNotFound."""
        record = yield self.ledger.record(checked_id(job_id))
        body = yield self.ledger.body(job_id)
        if record is None or body is None:
            raise JobNotFound(f"no job {job_id}: it was never submitted, or has been forgotten")
        return History(record, (yield self.ledger.read(job_id)), json.loads(body))

    def _run_again(self, job_id: str) -> Talk[Retried]:
        """The new id is made of the old one, so that a retry whose answer was lost may be repeated.

        The times at which the job should have been run are over, and do not go with it.
        """
        history = yield from self.history(job_id)
        job = GenerationJob.parse(history.body | {"deadline_ms": None, "not_before": None}, self.settings)
        queue = history.record.queue
        new_id = self._id_of("retry", job_id)
        yield from self._accepted(Order(new_id, "retry", Envelope.of(new_id, queue), job))
        yield self._letters.pardon(job_id)
        return Retried(new_id, queue)

    def _accepted(self, order: Order) -> Talk[str]:
        answer = yield self.ledger.submit(order.job_id, order.job, order.envelope)
        match answer.kind:
            case Submission.QUEUE_FULL | Submission.TOKENS_FULL:
                raise self.full(order, answer)
            case Submission.CONFLICT:
                raise JobConflict(
                    f"{order.name}: already names another job, {order.job_id}. "
                    "Fix: send the very same job again, or take another name"
                )
        return order.job_id

    def full(self, order: Order, answer: Submitted) -> QueueFull:
        """What is over the limit goes first, at the rate at which jobs were taken lately."""
        if answer.kind is Submission.QUEUE_FULL:
            limit = self.ledger.max_queue
            retry_s = _retry_s(answer.num_jobs - limit + 1, answer)
            return QueueFull(order.envelope.queue, "jobs", answer.num_jobs, limit, retry_s)
        limit = self.ledger.max_queue_tokens
        excess = answer.num_tokens + order.job.estimated_tokens - limit
        retry_s = _retry_s(ceil(excess * max(answer.num_jobs, 1) / answer.num_tokens), answer)
        return QueueFull(order.envelope.queue, "tokens", answer.num_tokens, limit, retry_s)

    def _id_of(self, kind: str, name: str) -> str:
        """An id that is a function of tenant, kind and name."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.settings.tenant}/{kind}/{name}"))


def _retry_s(num_jobs: int, answer: Submitted) -> float:
    if answer.taken_per_s == 0:
        return MAX_RETRY_S
    return min(max(num_jobs / answer.taken_per_s, MIN_RETRY_S), MAX_RETRY_S)


def _settings(settings: Settings | None, **given: str | int | None) -> Settings:
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


def checked_key(key: str) -> str:
    """`key` if it can be an idempotency key. Raises InvalidJob."""
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidJob(
            [FieldError("idempotency_key", f"must be 1 to {MAX_KEY_CHARS} characters long, got {len(key)}")]
        )
    return key
