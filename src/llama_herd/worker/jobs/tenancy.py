"""Tenancy: the part of a worker that belongs to one tenant."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from uuid import uuid4

from celery import Celery
from redis import Redis

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.held_jobs import EmitEntry, HeldJob, TenantEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.figures import JobFigures
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.settings import WorkerSettings

#: Most ids kept for one tenant; the oldest go first.
MAX_IDS = 10_000


class RevokedIds:
    """One thread adds and drops ids, others look.

    A bare message has no record before a worker claims it, so the ledger cannot note that its job is revoked.
    As in Celery each worker remembers it by itself, and forgets it when it ends.
    """

    def __init__(self, max_ids: int = MAX_IDS) -> None:
        self._max_ids = max_ids
        self._ids: dict[str, None] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._ids.pop(job_id, None)
            self._ids[job_id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]

    def drop(self, job_id: str) -> None:
        self._ids.pop(job_id, None)


#: The rate of tokens is that of this time, the first token that of the jobs which ended within this time.
RATE_S = 10.0
ENDS_S = 60.0
#: Tokens are counted in slices of this length.
SLICE_S = 1.0
#: Most ends that are kept: more do not change a median.
MAX_ENDS = 512


class RecentFigures:
    """Rates of tokens and times to first tokens over the last seconds. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._slices: deque[tuple[float, int]] = deque()  # when it began, and its tokens
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_ENDS)  # when it was, and ttft

    def note_tokens(self, num_tokens: int) -> None:
        """Note that so many tokens were drawn in a step."""
        now_s = self._clock()
        with self._lock:
            if self._slices and now_s - self._slices[-1][0] < SLICE_S:
                began_s, num_before = self._slices.pop()
                self._slices.append((began_s, num_before + num_tokens))
            elif num_tokens:
                self._slices.append((now_s, num_tokens))
            while self._slices and now_s - self._slices[0][0] > RATE_S:
                self._slices.popleft()

    def note_end(self, ttft_s: float | None) -> None:
        """Note that a job has ended; its first token came `ttft_s` after the job was due."""
        if ttft_s is not None:
            with self._lock:
                self._first_tokens.append((self._clock(), ttft_s))

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second within the last seconds; from the first one on if that is not so long ago."""
        now_s = self._clock()
        with self._lock:
            recent = [one for one in self._slices if now_s - one[0] <= RATE_S]
        if not recent:
            return 0.0
        return sum(num_tokens for _, num_tokens in recent) / max(SLICE_S, now_s - recent[0][0])

    @property
    def ttft_s(self) -> float:
        """Median time to the first token of the jobs that ended within the last minute; 0: none did."""
        now_s = self._clock()
        with self._lock:
            recent = [ttft_s for at_s, ttft_s in self._first_tokens if now_s - at_s <= ENDS_S]
        return median(recent) if recent else 0.0


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
