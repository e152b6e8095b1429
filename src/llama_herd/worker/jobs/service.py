"""All parts of a worker behind the Celery pool, and the order in which they start and stop."""

import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic, sleep, time
from typing import Any, Self
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.tasks.protocol.worker_status import WorkerState, WorkerStatus
from llama_herd.worker import process
from llama_herd.worker.broker import celery_config
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues
from llama_herd.worker.engine.interface import StepOutput
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.eviction import EvictionWatch
from llama_herd.worker.jobs.figures import WorkerFigures, summed_figures
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.heartbeat import Heartbeat
from llama_herd.worker.jobs.intake import CeleryEnd, Intake
from llama_herd.worker.jobs.loading_report import LoadingReport
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.preparer import Preparer
from llama_herd.worker.jobs.publisher import Publisher, ReleasedJob
from llama_herd.worker.jobs.redis_check import wait_for_usable_redis
from llama_herd.worker.jobs.revoker import Revoker
from llama_herd.worker.jobs.stream_bounds import StreamBounds
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.sweeper import Sweeper
from llama_herd.worker.jobs.tenancy import LeaseHolder, Tenancies, Tenancy
from llama_herd.worker.jobs.warm_up import NOBODY, WarmUp
from llama_herd.worker.jobs.watchdog import UNREADY_S, Poller, Watchdog
from llama_herd.worker.loading.card_lock import take_card
from llama_herd.worker.loading.device import pinned_card, visible_cards
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.threads import complaint_of_threads, num_threads, openmp_runtimes
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: Shorter than a lease: a connection that died silently is replaced before jobs are lost by it.
REDIS_TIMEOUT_S = 2.0

#: After this long without a layer a worker reports itself as stalled. It keeps its jobs until `stall_s`: a
#: report can be taken back the next second, but jobs that were given away are computed twice.
STALL_SHOWN_S = 15.0

#: How often a draining worker looks whether it is done.
DRAIN_POLL_S = 0.02


class Service:
    """The threads of one worker, of which each serves all of its tenants. Messages come in by `take`.

    delivery -> intake -> preparer -> engine -> publisher -> finisher -> delivery
    """

    def __init__(self, model: LoadedModel, settings: WorkerSettings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._started_ms = int(1000 * time())
        self._model = model
        self._paused_queues = set[str]()
        self._spoilt = SpoiltQueues()
        self._state: WorkerState = "starting"
        self._is_hurried = threading.Event()
        redis = connect(settings.redis_url, tries=1, timeout_s=REDIS_TIMEOUT_S)
        self._engine = EngineThread(model.engine(settings, self._hand_on))
        self._grammars = model.grammars
        self._redis = redis
        self._owner = uuid4().hex  # of leases; each start has a new one
        self.tenancies = Tenancies(map(self._new_tenancy, settings.by_queue.values()))
        self._gate = SuspectGate.shared() if settings.tenants else SuspectGate()
        # From the end of a job's way to its beginning, as each part is handed those that come after it.
        self._finisher = Finisher(redis)
        self._publisher = self._new_publisher()
        self._intake = self._new_intake()
        # Beside it: parts that look at the jobs in hand, and at the ledger.
        self._heartbeat = Heartbeat(
            redis,
            self._owner,
            self.tenancies,
            engine=self._engine,
            status=self.status,
            stall_s=settings.stall_s,
        )
        self._revoker = self._new_revoker()
        self._sweeper = Sweeper(redis, self.tenancies, self._new_overflow())
        self._eviction = EvictionWatch(redis, self._heartbeat.report_soon)
        self.watchdog = self._new_watchdog()
        self._warm_up = WarmUp(model)

    def _new_tenancy(self, own: WorkerSettings) -> Tenancy:
        """Make a tenancy by `own`, the settings of this tenant alone."""
        ledger, model = Ledger.from_settings(own, self._worker), self._model
        bounds = StreamBounds(own.max_tokens_limit, model.max_length, own.max_prompt_bytes)
        return Tenancy(
            own,
            LeaseHolder(self._redis, ledger, self._owner),
            ClaimedJobs(self._drop),
            StreamReader(self._redis, ledger, bounds),
            EventAuthor(self._worker, own.served_model, own.tenant, model.tokenizer.pieces),
            celery_config.app_of(own),
        )

    def _new_publisher(self) -> Publisher:
        return Publisher(
            self._redis,
            self._owner,
            self.tenancies,
            on_start=lambda attempt: self._engine.confirm(attempt.sequences),
            on_end=self._finish,
            on_lost=_lose,
            on_released=_acknowledge,
        )

    def _new_intake(self) -> Intake:
        preparer = Preparer(
            self._redis,
            self._owner,
            self.tenancies,
            self._model,
            publisher=self._publisher,
            gate=self._gate,
            engine=self._engine,
        )
        return Intake(
            self._redis,
            self._owner,
            self.tenancies,
            publisher=self._publisher,
            preparer=preparer,
            finisher=self._finisher,
        )

    def _new_revoker(self) -> Revoker:
        return Revoker(
            self._redis,
            self._worker,
            self.tenancies,
            on_cancelled=lambda tenancy, job_id: self._finisher.settle(tenancy, job_id, []),
            max_message_bytes=self._settings.max_message_bytes,
            replies=lambda tenancy: not celery_config.has_mailbox(tenancy.settings),
        )

    def _new_overflow(self) -> Overflow:
        return Overflow(
            self.tenancies,
            gate=self._gate,
            pause=self._pause,
            on_released=lambda released: self._publisher.put(list(map(ReleasedJob, released))),
        )

    def _new_watchdog(self) -> Watchdog:
        settings, ledger = self._settings, self.tenancies.first.ledger
        watchdog = Watchdog(self._redis, ledger, self.tenancies.queues, settings.silence_s, self._eviction)
        watchdog.watch_parts({"publisher": self._publisher, "finisher": self._finisher})
        return watchdog

    @classmethod
    def start(cls, settings: WorkerSettings, worker: str) -> Self:
        """Load the model and warm it up, then start all threads.

        Raises BadInput when Redis or the model cannot be used.
        """
        with connect(settings.redis_url, tries=0, timeout_s=REDIS_TIMEOUT_S) as redis:
            wait_for_usable_redis(redis, settings)
            if settings.device != "cpu":
                take_card(pinned_card(), worker, is_shared=settings.memory_share < 1)
            started_s = monotonic()
            with LoadingReport(redis, settings, worker) as report:
                model = LoadedModel.load(settings, process.device(), report.note_bytes)
                loaded_s = monotonic()
                service = cls(model, settings, worker)
                service._start_engine()
        log.info(
            "model loaded",
            model=settings.served_model,
            device=settings.device,
            dtype=model.plan.dtype,
            weights=model.plan.form_note,
            kernels=model.plan.form.kernels.note,
            steps=model.steps_note,
            threads=num_threads(settings),
            seconds=round(loaded_s - started_s, 3),
            weights_s=round(model.weights_s, 3),
            warm_up_s=round(monotonic() - loaded_s, 3),
        )
        if settings.device == "cpu" and "Fix: " in (note := model.plan.form.kernels.note):
            log.warning("native kernels are missing or old, steps are several times slower", reason=note)
        if complaint := complaint_of_threads(settings):
            log.warning("too many threads, steps are slow", reason=complaint, fix="leave HERD_THREADS out")
        if len(runtimes := openmp_runtimes()) > 1:
            note = "torch keeps to its own, native kernels have threads without OpenMP: results are the same"
            log.info("several OpenMP runtimes are loaded", runtimes=runtimes, note=note)
        if settings.device == "cpu" and (cards := visible_cards()):
            fix = "leave HERD_DEVICE out, with a torch that is built for CUDA"
            log.warning("a GPU stays idle, this worker runs on the CPU", gpus=cards, fix=fix)
        service._start_threads()
        return service

    def _start_threads(self) -> None:
        for thread in (self._publisher, self._intake, self._heartbeat, self._sweeper, self._revoker):
            thread.start()
        self.watchdog.start()

    def _start_engine(self) -> None:
        """Start the engine and let it become as fast as later. If that is interrupted, it stops first."""
        self._engine.start()
        try:
            self._warm_up.run(self._engine)
            self._model.llama.settle()
            self._engine.count_anew()
        except BaseException:
            self._engine.stop()
            raise

    def note_consuming(self) -> None:
        """Note that Celery takes messages from now on."""
        self._become("ready")

    def watch(self, poller: Poller) -> None:
        """Note the connection by which messages come from now on."""
        poller.paused_queues = self._paused_queues
        self._spoilt = poller.spoilt
        self.watchdog.watch(poller)

    def take(self, delivery: Delivery) -> None:
        """Take a message; never blocks."""
        self._intake.put(delivery)

    def end(self, job_id: str, queue: str, *, has_expired: bool) -> None:
        """Note that Celery has revoked a job of this queue, or found it expired before it ran."""
        self._intake.put(CeleryEnd(job_id, queue, "expired" if has_expired else "revoked"))

    def status(self, queue: str = "") -> WorkerStatus:
        """The worker's status, as users of this queue may see it: without names or keys of other tenants."""
        stats, spoilt = self._engine.stats, self._spoilt.found.get(queue)
        tenancy = self.tenancies.for_queue(queue)
        return WorkerStatus(
            name=self._worker,
            state=self._state_now,
            model=self._settings.served_model,
            device=self._settings.device,
            slots=self._settings.slots,
            started_ms=self._started_ms,
            max_length=min(self._model.max_length, self._model.plan.kv_cache_tokens),
            running=stats.num_running,
            waiting=self._engine.num_waiting,
            steps=stats.num_steps,
            kv_cache_tokens=self._model.cache.pages.num_pages * PAGE_TOKENS,
            kv_cache_usage=round(stats.kv_cache_usage, 4),
            prefix_hit_rate=round(stats.prefix_hit_rate, 4),
            prefix_cache_hits=stats.num_prefix_tokens,
            tokens_per_s=round(tenancy.recent.tokens_per_s, 1),
            ttft_s=round(tenancy.recent.ttft_s, 6),
            num_ended=tenancy.figures.num_ended,
            num_failed=tenancy.figures.num_failed,
            left_out=queue if spoilt else "",
            spoilt_key=spoilt.key if spoilt else "",
            spoilt_type=spoilt.type if spoilt else "",
            evicts=self._eviction.policy,
        )

    @property
    def kind(self) -> dict[str, str]:
        """The types of the worker's numbers and the form of its weights, which its status does not say."""
        form = "blocks" if self._model.plan.keeps_blocks else "dense"
        return {"dtype": self._model.plan.dtype, "weights": form}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a started worker prints and logs, the most important first."""
        status, settings = self.status(), self._settings
        return {
            "worker": status.name,
            "model": status.model,
            "device": status.device,
            **self.kind,
            "slots": status.slots,
            "kv_cache_tokens": status.kv_cache_tokens,
            "memory_bytes": self._model.plan.num_bytes,
            "queue": ", ".join(self.tenancies.queues),
            "redis": masked(settings.redis_url),
            "metrics_port": settings.metrics_port or None,
        }

    @property
    def figures(self) -> WorkerFigures:
        """All figures of the worker; any thread may ask."""
        tenancies = list(self.tenancies)
        return WorkerFigures(
            status=self.status(),
            engine=self._engine.stats,
            jobs=summed_figures([self._publisher.figures, *(tenancy.figures for tenancy in tenancies)]),
            grammars=self._grammars.figures,
            num_put_back=sum(tenancy.num_put_back for tenancy in tenancies),
            num_waiting_steps=self._publisher.num_waiting,
            lag_s=self._publisher.lag_s,
        )

    @property
    def _state_now(self) -> WorkerState:
        """The worker's state. Ready: model loaded, messages of a queue are taken, all parts progress."""
        if self._state == "ready" and self._engine.is_stalled(min(STALL_SHOWN_S, self._settings.stall_s)):
            return "stalled"
        if self._state == "ready" and self.watchdog.silent_s >= UNREADY_S:
            return "silent"
        if self._state == "ready" and self.watchdog.stuck_s >= UNREADY_S:
            return "stuck"
        if self._state == "ready" and set(self.tenancies.queues) <= self._spoilt.names:
            return "spoilt"
        return self._state

    def _become(self, state: WorkerState) -> None:
        self._state = state
        self._heartbeat.report_soon()

    def hurry(self) -> None:
        """End the grace period of running jobs; may be called from a signal handler."""
        self._is_hurried.set()

    def drain(self, until_s: float, pump: Callable[[], None]) -> None:
        """Stop all parts in the order of a job's way, so that each part still finds the next one running.

        Running jobs may end until `until_s`, on the clock of time.monotonic, while `pump` runs the acks. The
        others are released: other workers continue them from the recorded tokens.
        """
        self._become("stopping")
        self.watchdog.stop()
        self._revoker.stop()
        self._sweeper.stop()
        self._intake.stop()
        while self.tenancies.have_jobs and monotonic() < until_s and not self._is_hurried.is_set():
            pump()
            sleep(DRAIN_POLL_S)
        self._engine.stop()
        self._publisher.stop()
        self._release_all()
        self._heartbeat.stop()
        self._finisher.stop()
        self._model.close()
        pump()

    def _release_all(self) -> None:
        """Release the jobs that still run: other workers continue them."""
        attempts = self.tenancies.in_hand()
        try:
            run_calls(self._redis, [self.tenancies.for_attempt(one).holder.release(one) for one in attempts])
            log.info("jobs released", num_jobs=len(attempts))
        except RedisError as error:
            log.warning(
                "jobs not released, left to their leases", num_jobs=len(attempts), error=type(error).__name__
            )

    def _hand_on(self, outputs: list[StepOutput]) -> None:
        """Publish the outputs of a step; blocks while too many steps wait for Redis."""
        if outputs and outputs[0].sequence.tenant == NOBODY:
            self._warm_up.take(outputs)
            return
        num_tokens = Counter[str]()
        for output in outputs:
            num_tokens[output.sequence.tenant] += len(output.tokens)
        for tenant, num in num_tokens.items():
            self.tenancies[tenant].recent.note_tokens(num)
        self._publisher.put(outputs)

    def _finish(self, attempt: Attempt) -> None:
        tenancy = self.tenancies.for_attempt(attempt)
        tenancy.recent.note_end(attempt.timings.ttft_s)
        self._finisher.settle(tenancy, attempt.job_id, attempt.deliveries, attempt.line)

    def _drop(self, attempt: Attempt) -> None:
        """Take a job out of the engine, if it still runs there."""
        if attempt.unended:
            self._engine.abort(attempt.unended, "dropped")

    def _pause(self, queue: str, is_paused: bool) -> None:
        """Take no more messages of a queue, or take them again."""
        (self._paused_queues.add if is_paused else self._paused_queues.discard)(queue)


def _lose(attempt: Attempt) -> None:
    """Give up an attempt: the job is another worker's now."""
    for delivery in attempt.deliveries:
        delivery.let_go()


def _acknowledge(attempt: Attempt) -> None:
    """Acknowledge a released job's messages: the job has a new one in its queue."""
    for delivery in attempt.deliveries:
        delivery.acknowledge()
