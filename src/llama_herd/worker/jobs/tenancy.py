"""Tenancy: the part of a worker that belongs to one tenant."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

from celery import Celery
from redis import Redis

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.held_jobs import HeldJob, TenantEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.script_events import EmitEntry
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.figures import JobFigures
from llama_herd.worker.jobs.recent_figures import RecentFigures
from llama_herd.worker.jobs.revoked_ids import RevokedIds
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class LeaseHolder:
    """A worker's id as the owner of jobs, and its access to one tenant's ledger. Each start has a new id."""

    redis: Redis
    ledger: Ledger
    id: str = field(default_factory=lambda: uuid4().hex)

    def release(self, attempt: Attempt, *, push: bool = False) -> RedisCall[Release]:
        """The call that gives a job in hand back; `push`: with a new message in its queue."""
        return self.ledger.release(attempt.job_id, self.id, attempt.stream.epoch, push=push)


@dataclass(eq=False)
class Tenancy:
    """One tenant in a worker: its ledger, its jobs in hand, and their figures. It has no thread.

    The keys of all that is written of a job are made by its tenancy's ledger, and its tenancy is that of the
    queue which its message came from, whatever the message says.
    """

    #: This tenant's alone.
    settings: WorkerSettings
    holder: LeaseHolder
    claims: ClaimedJobs
    reader: StreamReader
    author: EventAuthor
    #: It has the tenant's result backend.
    app: Celery
    revoked: RevokedIds = field(default_factory=RevokedIds)
    recent: RecentFigures = field(default_factory=RecentFigures)
    #: What the publisher has written.
    figures: JobFigures = field(default_factory=JobFigures)
    #: Jobs whose message a sweep of this worker has pushed again.
    num_put_back: int = 0
    #: Free rows of other workers, as the heartbeat has heard while jobs waited here.
    num_free_elsewhere: int = 0

    @property
    def tenant(self) -> str:
        return self.ledger.tenant

    @property
    def queue(self) -> str:
        return self.settings.queue

    @property
    def redis(self) -> Redis:
        return self.holder.redis

    @property
    def ledger(self) -> Ledger:
        return self.holder.ledger

    def held(self, attempt: Attempt) -> HeldJob:
        """An attempt in hand, as calls for several jobs take it."""
        return HeldJob(self.ledger, attempt.job_id, attempt.stream.epoch)

    def entry(self, entry: EmitEntry) -> TenantEntry:
        """An event of a job in hand, as EMIT takes it."""
        return TenantEntry(self.ledger, entry)


class Tenancies:
    """All tenants of one worker, one at least."""

    def __init__(self, each: Iterable[Tenancy]) -> None:
        self._by_tenant = {one.tenant: one for one in each}
        self._by_queue = {one.queue: one for one in self._by_tenant.values()}

    def __iter__(self) -> Iterator[Tenancy]:
        return iter(self._by_tenant.values())

    def __getitem__(self, tenant: str) -> Tenancy:
        return self._by_tenant[tenant]

    def get(self, tenant: str) -> Tenancy | None:
        return self._by_tenant.get(tenant)

    @property
    def queues(self) -> list[str]:
        return list(self._by_queue)

    @property
    def first(self) -> Tenancy:
        """The first tenancy, for anything that is the same for all tenants."""
        return next(iter(self))

    def for_queue(self, queue: str) -> Tenancy:
        """The tenant whose queue this is; the first one if it is no tenant's."""
        return self._by_queue.get(queue) or self.first

    def for_attempt(self, attempt: Attempt) -> Tenancy:
        return self._by_tenant[attempt.tenant]

    def in_hand(self) -> list[Attempt]:
        """The attempts in hand of all tenants."""
        return [attempt for one in self for attempt in one.claims.in_hand()]

    @property
    def have_jobs(self) -> bool:
        """Whether any job is claimed and not ended."""
        return any(one.claims for one in self)
