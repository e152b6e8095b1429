"""Tenancy: the part of a worker that belongs to one tenant."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Self

import structlog
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.answers import ClaimAnswer, Emitted, Release
from llama_herd.tasks.ledger.held_jobs import HeldJob
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, run_calls
from llama_herd.tasks.ledger.reports import BeatAnswer
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker.broker import celery_config
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.result_backend import NO_VALUE, ResultValue
from llama_herd.worker.engine.interface import NewTokens, StepOutput
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.figures import JobFigures, RecentFigures
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: Most ids kept for one tenant; the oldest go first.
MAX_IDS = 10_000

#: In place of the heartbeat's first answer: nobody knows yet whether messages may be taken.
UNHEARD = BeatAnswer(num_free=0, is_paused=False, is_drained=False)


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

    def add(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._ids.pop(job_id, None)
            self._ids[job_id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]

    def drop(self, job_id: str) -> None:
        self._ids.pop(job_id, None)


class ClaimedJobs:
    """Attempts by job id. Any thread may call.

    An attempt is in hand from `begin` to `end`. It ends once, and the caller that ends it acts on that.
    Attempts are compared by identity, since a new one at the same job may take the place of an old one. The
    sequences of the old one are dropped first: both have the same names in the engine.
    """

    def __init__(self, drop: Callable[[Attempt], None] = lambda _: None) -> None:
        """`drop(attempt)` takes an ended attempt's sequences out of the engine; it must not block."""
        self._drop = drop
        self._by_id: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def begin(self, attempt: Attempt) -> None:
        """Take an attempt in hand. An earlier one at its job ends: another worker has owned that since."""
        with self._lock:
            earlier = self._by_id.get(attempt.job_id)
            if earlier is not None:
                self._remove(earlier)
                earlier.let_go()
            self._by_id[attempt.job_id] = attempt

    def end(self, attempt: Attempt) -> bool:
        """Take an attempt out of hand. False if it was in hand no longer."""
        with self._lock:
            if self._by_id.get(attempt.job_id) is not attempt:
                return False
            self._remove(attempt)
            return True

    def adopt(self, delivery: Delivery) -> bool:
        """Add another message of a job to its attempt in hand. False if there is none."""
        with self._lock:
            attempt = self._by_id.get(delivery.job_id)
            if attempt is not None:
                attempt.deliveries.append(delivery)
            return attempt is not None

    def get(self, job_id: str) -> Attempt | None:
        return self._by_id.get(job_id)

    def in_hand(self) -> list[Attempt]:
        """All attempts in hand, the earliest claimed first."""
        with self._lock:
            return list(self._by_id.values())

    def _remove(self, attempt: Attempt) -> None:
        del self._by_id[attempt.job_id]
        attempt.is_over = True
        self._drop(attempt)


@dataclass(eq=False)
class Tenancy:
    """One tenant in a worker: its ledger, its jobs in hand, and their figures. It has no thread.

    The keys of all that is written of a job are made by its tenancy's ledger, and its tenancy is that of the
    queue which its message came from, whatever the message says.
    """

    #: This tenant's alone.
    settings: WorkerSettings
    redis: Redis
    ledger: Ledger
    #: The worker, as it owns jobs.
    owner: str
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
    #: What the heartbeat has heard last.
    heard: BeatAnswer = UNHEARD
    #: Since when this worker is drained, by time.monotonic; None: it is not.
    drained_since_s: float | None = None
    #: The bytes of Redis that ended jobs may keep; 0: no limit, None: not seen yet.
    kept_limit: int | None = None
    #: Whether jobs that wait here are to go to other workers: they would come back by messages.
    is_shedding: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the tenant wants no messages to be taken here, or has not said so far."""
        return self.heard is UNHEARD or self.heard.is_paused or self.heard.is_drained

    @property
    def takes_messages(self) -> bool:
        """Whether this worker is to take messages of the tenant's queue now."""
        return not (self.is_shedding or self.is_held)

    @property
    def num_idle_others(self) -> int:
        """How many other workers that read the queue have free rows, at most."""
        heard = self.heard
        return min(heard.num_others, heard.num_free)

    def hear(self, answer: BeatAnswer) -> bool:
        """Take note of an answer to the heartbeat, and log what is new. Returns whether something is."""
        before, self.heard = self.heard, answer
        is_drained = answer.is_drained
        self.drained_since_s = (self.drained_since_s or monotonic()) if is_drained else None
        if answer.is_paused != before.is_paused:
            log.info("queue paused" if answer.is_paused else "queue resumed", queue=self.queue)
        if is_drained != before.is_drained:
            told = "worker drained: it takes no jobs" if is_drained else "drain undone: it takes jobs again"
            log.info(told, queue=self.queue, num_jobs=len(self.claims.in_hand()))
        return (answer.is_paused, is_drained) != (before.is_paused, before.is_drained)

    @classmethod
    def of(
        cls,
        own: WorkerSettings,
        redis: Redis,
        owner: str,
        worker: str,
        maker: SequenceMaker,
        drop: Callable[[Attempt], None],
    ) -> Self:
        """Make a tenancy by `own`, the settings of this tenant alone; `drop` as in `ClaimedJobs`."""
        ledger = Ledger.from_settings(own, worker)
        lengths = own.max_tokens_limit, maker.max_length, own.max_prompt_bytes, maker.texts.vector_chars
        return cls(
            own,
            redis,
            ledger,
            owner,
            ClaimedJobs(drop),
            StreamReader(redis, ledger, *lengths),
            EventAuthor(
                worker,
                own.served_model,
                own.tenant,
                maker.tokenizer.pieces,
                maker.texts.num_dimensions,
                maker.weights_digest,
            ),
            celery_config.app_of(own),
        )

    @property
    def tenant(self) -> str:
        return self.ledger.tenant

    @property
    def queue(self) -> str:
        return self.settings.queue

    def claim(
        self, job_id: str, job: Job | None = None, envelope: Envelope | None = None
    ) -> RedisCall[ClaimAnswer]:
        """The call that claims a job of this tenant's queue for this worker."""
        return self.ledger.claim(job_id, self.owner, queue=self.queue, job=job, envelope=envelope)

    def release(self, attempt: Attempt, *, push: bool = False, has_died: bool = False) -> RedisCall[Release]:
        """The call that gives a job in hand back; `push`: with a new message in its queue.

        has_died: what computed it has died, which counts against it.
        """
        epoch = attempt.stream.epoch
        return self.ledger.release(attempt.job_id, self.owner, epoch, push=push, has_died=has_died)

    def put_back(self, attempt: Attempt, failure: Failure, delay_ms: int) -> RedisCall[Emitted]:
        """The call that puts a job in hand back, to be tried again after `failure`."""
        return self.ledger.retry(
            attempt.job_id,
            self.owner,
            attempt.stream.epoch,
            seq=attempt.stream.seq,
            delay_ms=delay_ms,
            left=attempt.retries.num_left - 1,
            error=failure,
        )

    def settle(self, job_id: str, result: ResultValue = NO_VALUE) -> RedisCall[bool]:
        """The call that tells Celery how a job ended, and notes it; it answers whether the job was purged."""
        return self.ledger.settle(job_id, *result, is_elsewhere=self._has_results_elsewhere)

    @cached_property
    def _has_results_elsewhere(self) -> bool:
        return self.settings.keeps_results_elsewhere

    def held(self, attempt: Attempt) -> HeldJob:
        """An attempt in hand, as calls for several jobs take it."""
        return HeldJob(
            self.ledger,
            attempt.job_id,
            attempt.stream.epoch,
            attempt.num_preemptions if attempt.is_preempted else 0,
        )


class Tenancies:
    """All tenants of one worker, one at least."""

    def __init__(self, each: Iterable[Tenancy]) -> None:
        self._by_tenant = {one.tenant: one for one in each}
        self._by_queue = {one.queue: one for one in self._by_tenant.values()}

    def __iter__(self) -> Iterator[Tenancy]:
        return iter(self._by_tenant.values())

    def __getitem__(self, tenant: str) -> Tenancy:
        return self._by_tenant[tenant]

    @property
    def queues(self) -> list[str]:
        return list(self._by_queue)

    @property
    def first(self) -> Tenancy:
        """The first tenancy, for anything that is the same for all tenants."""
        return next(iter(self))

    @property
    def redis(self) -> Redis:
        """The one connection of all."""
        return self.first.redis

    @property
    def owner(self) -> str:
        """The worker, as it owns jobs of any tenant."""
        return self.first.owner

    def for_queue(self, queue: str) -> Tenancy:
        """The tenant whose queue this is; the first one if it is no tenant's."""
        return self._by_queue.get(queue) or self.first

    def for_attempt(self, attempt: Attempt) -> Tenancy:
        return self._by_tenant[attempt.tenant]

    def in_hand(self) -> list[Attempt]:
        """The attempts in hand of all tenants."""
        return [attempt for one in self for attempt in one.claims.in_hand()]

    def note_step(self, outputs: Iterable[StepOutput]) -> None:
        """Count the tokens of a step, each for its tenant."""
        num_tokens = Counter[str]()
        for output in outputs:
            if isinstance(output, NewTokens):
                num_tokens[output.sequence.tenant] += len(output.tokens)
        for tenant, num in num_tokens.items():
            self._by_tenant[tenant].recent.note_tokens(num)

    def release_all(self) -> None:
        """Release the jobs in hand: other workers continue them. Their leases end if Redis is away."""
        attempts = self.in_hand()
        try:
            run_calls(self.redis, [self.for_attempt(one).release(one) for one in attempts])
            log.info("jobs released", num_jobs=len(attempts))
        except RedisError as error:
            log.warning(
                "jobs not released, left to their leases", num_jobs=len(attempts), error=type(error).__name__
            )
