"""The dead, for people: listed, run again, dropped."""

from dataclasses import dataclass
from typing import NamedTuple

from llama_herd.errors import FieldError, InvalidJob, JobNotFound
from llama_herd.tasks.client.history import history
from llama_herd.tasks.client.purge import purge
from llama_herd.tasks.client.submission import NewJob, checked_id, enqueue, id_of_retry
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter, Revival
from llama_herd.tasks.ledger.dead_letters import DeadLetters, is_letter_number
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Dialogue
from llama_herd.tasks.message import Envelope, is_queue_of
from llama_herd.tasks.settings import Settings


class Retried(NamedTuple):
    """What came of a retry: the id of the new job, None for a message; and the queue it went to."""

    job_id: str | None
    queue: str


@dataclass(frozen=True)
class Dead:
    """Jobs that were given up, by their ids, and messages that nobody could read, by their numbers."""

    settings: Settings
    ledger: Ledger
    letters: DeadLetters

    def list(self, limit: int) -> Dialogue[list[DeadJob | DeadLetter]]:
        """The newest, the last one first."""
        jobs, letters = yield [self.letters.jobs(limit), self.letters.letters(limit)]
        found: list[DeadJob | DeadLetter] = [*jobs, *letters]
        return sorted(found, key=lambda one: one.at_ms, reverse=True)[:limit]

    def letter(self, number: str) -> Dialogue[DeadLetter | None]:
        """A message; None when there is none of this number."""
        return (yield self.letters.letter(number)) if is_letter_number(number) else None

    def retry(self, name: str) -> Dialogue[Retried]:
        """Run a job again, or push a message back. Raises JobNotFound, InvalidJob, QueueFull."""
        if (yield self.letters.is_quarantined(name)):
            return (yield from self._run_again(name))
        letter = yield from self.letter(name)
        if letter is not None and not letter.is_whole:
            message = f"of {letter.num_bytes} bytes only {len(letter.raw)} were kept"
            raise InvalidJob([FieldError(f"message {name}", message)])
        if letter is not None and not is_queue_of(self.settings.tenant, letter.queue):
            raise InvalidJob([FieldError(f"message {name}", "it came by no queue of this tenant")])
        if letter is None or (yield self.letters.revive(name)) is Revival.UNKNOWN:
            raise JobNotFound(f"no job and no message {name} among the dead: see herd dead list")
        return Retried(None, letter.queue)

    def drop(self, name: str, queue: str) -> Dialogue[None]:
        """Forget a message, or purge a job, whose message may be in `queue`. Raises JobNotFound."""
        if is_letter_number(name) and (yield self.letters.drop(name)):
            return
        yield from purge(self.ledger, checked_id(name), queue)

    def _run_again(self, job_id: str) -> Dialogue[Retried]:
        """The new id is made of the old one, so that a retry whose answer was lost may be repeated.

        The times at which the job should have been run are over, and do not go with it.
        """
        kept = yield from history(self.ledger, job_id)
        job = GenerationJob.parse(kept.body | {"deadline_ms": None, "not_before": None}, self.settings)
        queue = kept.record.queue
        new_id = id_of_retry(self.settings.tenant, job_id)
        yield from enqueue(self.ledger, NewJob(new_id, "retry", Envelope.of(new_id, queue), job))
        yield self.letters.unlist(job_id)
        return Retried(new_id, queue)
