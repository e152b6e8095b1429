"""A new job as SUBMIT and SUBMIT_MANY take it."""

from dataclasses import dataclass
from typing import Self

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import lane_of, lists_of


@dataclass(frozen=True, slots=True)
class SubmitItem:
    """A new job as SUBMIT_MANY takes it.

    shared_keys: those that other jobs of the call may touch, too. num_bytes: length of its body and message.
    """

    keys: tuple[str, str]
    shared_keys: tuple[str, ...]
    args: tuple[Argument, ...]
    num_bytes: int

    @classmethod
    def from_job(cls, keys: Keys, job_id: str, job: GenerationJob, envelope: Envelope) -> Self:
        """keys: those of the job's tenant."""
        text, *rest = record_arguments(job, envelope)
        body = str(text).encode()
        args = (job_id, *webhook_arguments(job), body, *rest)
        own_keys = (keys.job_key(job_id), envelope.queue)
        return cls(own_keys, queue_keys(keys, job, envelope), args, len(body) + len(envelope.text))


def queue_keys(keys: Keys, job: GenerationJob, envelope: Envelope) -> tuple[str, ...]:
    """Keys of the queue that a new job joins: all lists of the queue, and the line of the job's own list."""
    return (*lists_of(envelope.queue), keys.line_key(f"{envelope.queue}{lane_of(job.priority)}"))


def record_arguments(job: GenerationJob, envelope: Envelope) -> tuple[str | int, ...]:
    """A new job as the arguments of `record.lua`."""
    return (
        job.to_json(),
        envelope.text,
        _optional(job.deadline_ms) if job.timeout_s is None else f"+{job.timeout_ms}",
        _optional(job.not_before),
        job.estimated_tokens,
        lane_of(job.priority),
    )


def webhook_arguments(job: GenerationJob) -> tuple[str, str]:
    """Where to tell of a job's end, and what to sign that with; empty: as the tenant's."""
    return job.webhook or "", job.webhook_secret or ""


def _optional(number: int | None) -> str:
    return "" if number is None else str(number)
