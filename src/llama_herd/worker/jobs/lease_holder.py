"""A worker as the ledger knows it."""

from dataclasses import dataclass, field
from uuid import uuid4

from redis import Redis

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.worker.jobs.attempt import Attempt


@dataclass(frozen=True)
class LeaseHolder:
    """A worker's id as the owner of jobs, and its access to one tenant's ledger. Each start has a new id."""

    redis: Redis
    ledger: Ledger
    id: str = field(default_factory=lambda: uuid4().hex)

    def release(self, attempt: Attempt, *, push: bool = False) -> RedisCall[Release]:
        """The call that gives a job in hand back; `push`: with a new message in its queue."""
        return self.ledger.release(attempt.job_id, self.id, attempt.stream.epoch, push=push)
