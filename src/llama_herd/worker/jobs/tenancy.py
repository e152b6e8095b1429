"""One tenant's part of a worker: its ledger, its streams, its leases, its results."""

from collections.abc import Callable, Mapping, Sequence as Rows
from dataclasses import dataclass
from functools import partial

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_many
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.broker import celery_config
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.event_log import Author
from llama_herd.worker.jobs.figures import JobFigures
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.heartbeat import Heartbeat
from llama_herd.worker.jobs.intake import CeleryEnd, Intake
from llama_herd.worker.jobs.lease_holder import LeaseHolder
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.preparer import Preparer
from llama_herd.worker.jobs.publisher import Publisher, Released
from llama_herd.worker.jobs.recent_figures import RecentFigures
from llama_herd.worker.jobs.revoked_ids import RevokedIds
from llama_herd.worker.jobs.revoker import Revoker
from llama_herd.worker.jobs.stream_bounds import StreamBounds
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.sweeper import Sweeper
from llama_herd.worker.jobs.watchdog import Part
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Shared:
    """What all tenancies of one worker use."""

    worker: str
    redis: Redis
    model: LoadedModel
    engine: EngineThread
    gate: SuspectGate
    #: The worker's status, as users of a queue may see it.
    status: Callable[[str], WorkerStatus]
    #: `pause(queue, True)` stops the worker from taking messages of the queue, within a second.
    pause: Callable[[str, bool], None]


class Tenancy:
    """All parts that use one tenant's ledger, around the engine and the gate that all tenants share.

    delivery -> intake -> preparer -> engine -> publisher -> finisher -> delivery
    """

    def __init__(self, settings: WorkerSettings, shared: Shared) -> None:
        """`settings` are this tenant's."""
        self.tenant = settings.tenant
        self.recent = RecentFigures()
        self._settings = settings
        self._shared = shared
        self._holder = holder = LeaseHolder(shared.redis, Ledger.of(settings, shared.worker))
        self._claims = claims = ClaimedJobs(self._drop)
        self._revoked = RevokedIds()
        bounds = StreamBounds(settings.max_tokens_limit, shared.model.max_length)
        self._reader = StreamReader(holder.redis, holder.ledger, bounds)
        self._status = partial(shared.status, settings.queue)
        # From the end of a job's way to its beginning, as each part is handed those that come after it.
        self._finisher = self._new_finisher()
        self._publisher = self._new_publisher()
        self._intake = self._new_intake()
        # Beside it: parts that look at the jobs in hand, and at the ledger.
        self._heartbeat = Heartbeat(
            holder, claims=claims, engine=shared.engine, status=self._status, stall_s=settings.stall_s
        )
        self._revoker = self._new_revoker()
        self._sweeper = Sweeper(holder.redis, holder.ledger, self._new_overflow())

    def _new_intake(self) -> Intake:
        shared, model = self._shared, self._settings.served_model
        return Intake(
            self._holder,
            self._settings,
            author=Author(shared.worker, model, self.tenant, shared.model.tokenizer.pieces),
            claims=self._claims,
            publisher=self._publisher,
            preparer=self._new_preparer(),
            finisher=self._finisher,
            reader=self._reader,
            revoked=self._revoked,
        )

    def _new_preparer(self) -> Preparer:
        shared = self._shared
        return Preparer(
            self._holder,
            self._settings,
            shared.model,
            publisher=self._publisher,
            gate=shared.gate,
            engine=shared.engine,
        )

    def _new_publisher(self) -> Publisher:
        return Publisher(
            self._holder,
            self._claims,
            on_start=lambda attempt: self._shared.engine.confirm(attempt.sequences),
            on_end=self._finish,
            on_lost=self._lose,
            on_released=self._acknowledge,
        )

    def _new_finisher(self) -> Finisher:
        app = celery_config.app_of(self._settings)
        return Finisher(self._holder.redis, self._holder.ledger, app, self._reader)

    def _new_revoker(self) -> Revoker:
        return Revoker(
            self._holder,
            self._shared.worker,
            self._revoked,
            on_cancelled=lambda job_id: self._finisher.settle(job_id, []),
            max_message_bytes=self._settings.max_message_bytes,
            replies=not celery_config.has_mailbox(self._settings),
        )

    def _new_overflow(self) -> Overflow:
        return Overflow(
            self._holder,
            claims=self._claims,
            gate=self._shared.gate,
            status=self._status,
            pause=partial(self._shared.pause, self._settings.queue),
            on_released=lambda released: self._publisher.put(list(map(Released, released))),
        )

    @property
    def has_jobs(self) -> bool:
        """Whether any job is claimed and not ended."""
        return bool(self._claims)

    @property
    def figures(self) -> JobFigures:
        """What the publisher has written."""
        return self._publisher.figures

    @property
    def num_put_back(self) -> int:
        return self._sweeper.num_put_back

    @property
    def num_waiting_steps(self) -> int:
        return self._publisher.num_waiting

    @property
    def lag_s(self) -> float:
        return self._publisher.lag_s

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that must make progress while they have work."""
        parts: list[tuple[str, Part]] = [("publisher", self._publisher), ("finisher", self._finisher)]
        return {f"{name} of {self.tenant}": part for name, part in parts}

    def start(self) -> None:
        for thread in (self._publisher, self._intake, self._heartbeat, self._sweeper, self._revoker):
            thread.start()

    def take(self, item: Delivery | CeleryEnd) -> None:
        """Take a message, or note that Celery has ended a job; never blocks."""
        self._intake.put(item)

    def publish(self, outputs: Rows[StepOutput]) -> None:
        """Publish the outputs of a step; blocks while too many steps wait for Redis."""
        self.recent.note_tokens(sum(len(output.tokens) for output in outputs))
        self._publisher.put(outputs)

    def report_soon(self) -> None:
        """Report the worker's new state soon."""
        self._heartbeat.report_soon()

    def stop_taking(self) -> None:
        """Stop claiming and sweeping."""
        self._revoker.stop()
        self._sweeper.stop()
        self._intake.stop()

    def stop(self) -> None:
        """Send waiting events, release the jobs that still run, store the results that are due."""
        self._publisher.stop()
        self._release(self._claims.in_hand())
        self._heartbeat.stop()
        self._finisher.stop()

    def _release(self, attempts: list[Attempt]) -> None:
        try:
            run_many(self._holder.redis, [self._holder.release(attempt) for attempt in attempts])
            log.info("jobs released", num_jobs=len(attempts))
        except RedisError as error:
            log.warning(
                "jobs not released, left to their leases", num_jobs=len(attempts), error=type(error).__name__
            )

    def _finish(self, attempt: Attempt) -> None:
        self.recent.note_end(attempt.timings.ttft_s)
        self._finisher.settle(attempt.job_id, attempt.deliveries, attempt.line)

    def _lose(self, attempt: Attempt) -> None:
        for delivery in attempt.deliveries:
            delivery.let_go()

    def _acknowledge(self, attempt: Attempt) -> None:
        for delivery in attempt.deliveries:
            delivery.acknowledge()

    def _drop(self, attempt: Attempt) -> None:
        """Take a job out of the engine, if it still runs there."""
        if attempt.unended:
            self._shared.engine.abort(attempt.unended, "dropped")
