"""A worker as the ledger knows it."""

from dataclasses import dataclass, field
from uuid import uuid4

from redis import Redis

from llama_herd.tasks.ledger.answers import Release, Renewed
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Call
from llama_herd.worker.jobs.attempt import Attempt


@dataclass(frozen=True)
class LeaseHolder:
    """A worker's id as the owner of jobs, and its access to the ledger. Each start has a new id."""

    redis: Redis
    ledger: Ledger
    id: str = field(default_factory=lambda: uuid4().hex)

    def renew(self, attempt: Attempt) -> Call[Renewed]:
        """The call that renews the lease of a job in hand."""
        return self.ledger.renew(attempt.job_id, self.id, attempt.stream.epoch)

    def release(self, attempt: Attempt, *, push: bool = False) -> Call[Release]:
        """The call that gives a job in hand back; `push`: with a new message in its queue."""
        return self.ledger.release(attempt.job_id, self.id, attempt.stream.epoch, push=push)
