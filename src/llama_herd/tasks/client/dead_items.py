"""Poisoned jobs, dead letters and all that Redis has of a job, for people: list, run again, delete."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_herd.errors import FieldError, InvalidJob, JobNotFound, JobRunning, RecordUnreadable
from llama_herd.tasks.client.arguments import checked_count, checked_text
from llama_herd.tasks.client.job_purge import purge_job
from llama_herd.tasks.client.submission import NewJob, checked_job_id, enqueue, id_of_retry
from llama_herd.tasks.client.timeline import Moment, timeline
from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter, JobRecord, Revival
from llama_herd.tasks.ledger.dead_letters import DeadLetters, is_letter_number
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import read_record
from llama_herd.tasks.ledger.redis_call import both
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job import is_job_id
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.message import Envelope, is_queue_of
from llama_herd.tasks.protocol.terms import MAX_NOTES
from llama_herd.tasks.settings import Settings

#: The note of a job that runs another one again: the id of that.
RETRY_OF = "retry_of"


class Retried(NamedTuple):
    """The id of the new job, or None for a dead letter; and the queue it went to."""

    job_id: str | None
    queue: str


@dataclass(frozen=True)
class DeadItems:
    """Lists, retries and deletes poisoned jobs and dead letters, by their ids."""

    settings: Settings
    ledger: Ledger
    letters: DeadLetters

    async def list(self, limit: int) -> list[DeadJob | DeadLetter]:
        """At most `limit` of both, the newest first."""
        checked_count("limit", limit)
        jobs, letters = await both(self.letters.jobs(limit), self.letters.letters(limit))
        found: list[DeadJob | DeadLetter] = [*jobs, *letters]
        return sorted(found, key=lambda one: one.at_ms, reverse=True)[:limit]

    async def letter(self, number: str) -> DeadLetter | None:
        """A dead letter; None if no letter has this id."""
        return (await self.letters.letter(number)) if is_letter_number(number) else None

    async def retry(self, name: str, check_priority: Callable[[int], None] = lambda _: None) -> Retried:
        """Run a job again, or push a letter back. Raises JobNotFound, JobRunning, InvalidJob, QueueFull.

        check_priority: raises InvalidJob for a priority that the caller's jobs may not have.
        """
        checked_text("name", name)
        record = None
        if is_job_id(name) and not is_letter_number(name):
            record, _ = await read_record(self.ledger, name)
        if record is not None and not record.is_final:
            raise JobRunning(f"job {name} has not ended. Fix: wait for its end, or cancel it first")
        if record is not None:
            return await self._run_again(name, record.queue, check_priority)
        return await self._push_back(name)

    async def _push_back(self, name: str) -> Retried:
        """Push a letter back into the queue that it came from."""
        letter = await self.letter(name)
        if letter is not None and not letter.is_whole:
            message = f"only {len(letter.raw)} of its {letter.num_bytes} bytes were kept"
            raise InvalidJob([FieldError(f"message {name}", message)])
        if letter is not None and not is_queue_of(self.settings.tenant, letter.queue):
            raise InvalidJob([FieldError(f"message {name}", "it did not come from a queue of this tenant")])
        if letter is None or (await self.letters.revive(name)) is Revival.UNKNOWN:
            raise JobNotFound(
                f"no job that has ended and no dead letter has the id {name}. Fix: see herd dead list, and "
                "herd jobs --state ended"
            )
        return Retried(None, letter.queue)

    async def drop(self, name: str, queue: str) -> None:
        """Delete a letter, or purge a job, whose message may be in `queue`. Raises JobNotFound."""
        checked_text("name", name)
        if is_letter_number(name) and (await self.letters.drop(name)):
            return
        await purge_job(self.ledger, name, queue)

    async def _run_again(self, job_id: str, queue: str, check_priority: Callable[[int], None]) -> Retried:
        """Run a job under an id derived from its own, so a retry may be repeated. Its times are over."""
        body, secret = await both(self.ledger.body(job_id), self.ledger.webhook_secret(job_id))
        changed: dict[str, object] = {"deadline_ms": None, "not_before": None, "webhook_secret": secret}
        job = parse_job(body_fields(job_id, body) | changed, self.settings)
        check_priority(job.priority)
        if len(job.metadata) < MAX_NOTES:
            job = job.model_copy(update={"metadata": job.metadata | {RETRY_OF: job_id}})
        new_id = id_of_retry(self.settings.tenant, job_id)
        named = NewJob(new_id, "retry", Envelope.for_job(new_id, queue), job)
        await enqueue(self.ledger, named, self.settings)
        await self.letters.unlist(job_id)
        return Retried(new_id, queue)


class History(NamedTuple):
    """A job's record, its events, and its body: the job as it was accepted, with its prompt."""

    record: JobRecord
    events: list[Event]
    body: dict[str, Any]

    @property
    def timeline(self) -> list[Moment]:
        """What became of the job, moment by moment."""
        return timeline(self.record, self.events)


async def read_history(ledger: Ledger, job_id: str) -> History:
    """Read all that Redis has of a job. Raises JobNotFound."""
    record, _ = await read_record(ledger, checked_job_id(job_id))
    body = await ledger.body(job_id)
    if record is None:
        raise JobNotFound.for_id(job_id)
    return History(record, await ledger.read(job_id), body_fields(job_id, body))


def body_fields(job_id: str, body: bytes | None) -> dict[str, Any]:
    """The fields of a job as it was accepted. Raises RecordUnreadable; JobNotFound if it is gone by now."""
    if body is None:
        raise JobNotFound.for_id(job_id)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RecordUnreadable(f"the body in the record of job {job_id} is not a job. Fix: purge it")
    return fields
