"""All parts of a worker behind the Celery pool, and the order in which they start and stop."""

import threading
from collections import defaultdict
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Self

import structlog

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.connection import connect
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.redis_url import masked
from llama_herd.tasks.worker_status import State, WorkerStatus
from llama_herd.worker import process
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.eviction import EvictionWatch
from llama_herd.worker.jobs.figures import WorkerFigures, joined
from llama_herd.worker.jobs.intake import CeleryEnd
from llama_herd.worker.jobs.loading_report import LoadingReport
from llama_herd.worker.jobs.redis_check import check_redis
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Shared, Tenancy
from llama_herd.worker.jobs.warm_up import NOBODY, WarmUp
from llama_herd.worker.jobs.watchdog import UNREADY_S, Poller, Watchdog
from llama_herd.worker.loading.card_lock import take_card
from llama_herd.worker.loading.device import pinned_card, visible_cards
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.openmp import openmp_runtimes
from llama_herd.worker.loading.threads import complaint_of_threads, num_threads
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
    """The threads of one worker: one engine, and a `Tenancy` for each tenant. Messages come in by `take`."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._model = model
        self._paused_queues = set[str]()
        self._spoilt = SpoiltQueues()
        self._state: State = "starting"
        self._is_hurried = threading.Event()
        redis = connect(settings.redis_url, tries=1, timeout_s=REDIS_TIMEOUT_S)
        self._engine = EngineThread(model.engine(settings, self._hand_on))
        self._grammars = model.grammars
        gate = SuspectGate.shared() if settings.tenants else SuspectGate()
        self._eviction = EvictionWatch(redis, self._report_soon)
        ledger, queues = Ledger.of(settings.of_first_tenant), list(settings.by_queue)
        self.watchdog = Watchdog(redis, ledger, queues, settings.silence_s, self._eviction)
        shared = Shared(worker, redis, model, self._engine, gate, self.status, self._pause)
        self._by_queue = {queue: Tenancy(own, shared) for queue, own in settings.by_queue.items()}
        self.tenancies = {tenancy.tenant: tenancy for tenancy in self._by_queue.values()}
        for tenancy in self.tenancies.values():
            self.watchdog.watch_parts(tenancy.parts)
        self._warm_up = WarmUp(model)
        self._sinks: dict[str, Callable[[list[StepOutput]], None]] = {
            NOBODY: self._warm_up.take,
            **{tenant: tenancy.publish for tenant, tenancy in self.tenancies.items()},
        }

    @classmethod
    def start(cls, settings: WorkerSettings, worker: str) -> Self:
        """Load the model and warm it up, then start all threads.

        Raises BadInput when Redis or the model cannot be used.
        """
        with connect(settings.redis_url, tries=0, timeout_s=REDIS_TIMEOUT_S) as redis:
            check_redis(redis, settings)
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
        if complaint := complaint_of_threads(settings):
            log.warning("too many threads, steps are slow", reason=complaint, fix="leave HERD_THREADS out")
        if len(runtimes := openmp_runtimes()) > 1:
            note = "torch keeps to its own, native kernels have threads without OpenMP: results are the same"
            log.info("several OpenMP runtimes are loaded", runtimes=runtimes, note=note)
        if settings.device == "cpu" and (cards := visible_cards()):
            fix = "leave HERD_DEVICE out, with a torch that is built for CUDA"
            log.warning("a GPU stays idle, this worker runs on the CPU", gpus=cards, fix=fix)
        for tenancy in service.tenancies.values():
            tenancy.start()
        service.watchdog.start()
        return service

    def _start_engine(self) -> None:
        """Start the engine and warm it up. If that is interrupted, the engine stops first."""
        self._engine.start()
        try:
            self._warm_up.run(self._engine)
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
        self._tenancy_of(delivery.queue).take(delivery)

    def end(self, job_id: str, queue: str, *, has_expired: bool) -> None:
        """Note that Celery has revoked a job of this queue, or found it expired before it ran."""
        self._tenancy_of(queue).take(CeleryEnd(job_id, "expired" if has_expired else "revoked"))

    def status(self, queue: str = "") -> WorkerStatus:
        """The worker's status, as users of this queue may see it: without names or keys of other tenants."""
        stats, spoilt = self._engine.stats, self._spoilt.found.get(queue)
        tenancy = self._tenancy_of(queue)
        return WorkerStatus(
            name=self._worker,
            state=self._state_now,
            model=self._settings.served_model,
            device=self._settings.device,
            slots=self._settings.slots,
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
        """What kind of worker it is, beyond its status: the types of its numbers."""
        form = "blocks" if self._model.plan.keeps_blocks else "dense"
        return {"dtype": self._model.plan.dtype, "weights": form}

    @property
    def facts(self) -> dict[str, Any]:
        """What a person wants to know about a new worker, the most important first."""
        status, settings = self.status(), self._settings
        return {
            "worker": status.name,
            "model": status.model,
            "device": status.device,
            **self.kind,
            "slots": status.slots,
            "kv_cache_tokens": status.kv_cache_tokens,
            "memory_bytes": self._model.plan.num_bytes,
            "queue": ", ".join(settings.by_queue),
            "redis": masked(settings.redis_url),
            "metrics_port": settings.metrics_port or None,
        }

    @property
    def figures(self) -> WorkerFigures:
        """All figures of the worker; any thread may ask."""
        tenancies = self.tenancies.values()
        return WorkerFigures(
            status=self.status(),
            engine=self._engine.stats,
            jobs=joined(tenancy.figures for tenancy in tenancies),
            grammars=self._grammars.figures,
            num_put_back=sum(tenancy.num_put_back for tenancy in tenancies),
            num_waiting_steps=max(tenancy.num_waiting_steps for tenancy in tenancies),
            lag_s=max(tenancy.lag_s for tenancy in tenancies),
        )

    @property
    def _state_now(self) -> State:
        """Ready: the model is loaded, messages of at least one queue are taken, and all parts progress."""
        if self._state == "ready" and self._engine.is_stalled(min(STALL_SHOWN_S, self._settings.stall_s)):
            return "stalled"
        if self._state == "ready" and self.watchdog.silent_s >= UNREADY_S:
            return "silent"
        if self._state == "ready" and self.watchdog.stuck_s >= UNREADY_S:
            return "stuck"
        if self._state == "ready" and self._by_queue.keys() <= self._spoilt.names:
            return "spoilt"
        return self._state

    def _become(self, state: State) -> None:
        self._state = state
        self._report_soon()

    def _report_soon(self) -> None:
        for tenancy in self.tenancies.values():
            tenancy.report_soon()

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
        tenancies = self.tenancies.values()
        for tenancy in tenancies:
            tenancy.stop_taking()
        while (
            any(tenancy.has_jobs for tenancy in tenancies)
            and monotonic() < until_s
            and not self._is_hurried.is_set()
        ):
            pump()
            sleep(DRAIN_POLL_S)
        self._engine.stop()
        for tenancy in tenancies:
            tenancy.stop()
        self._model.close()
        pump()

    def _tenancy_of(self, queue: str) -> Tenancy:
        """A message belongs to the tenant whose queue it came from, whatever it says itself."""
        return self._by_queue.get(queue) or next(iter(self._by_queue.values()))

    def _hand_on(self, outputs: list[StepOutput]) -> None:
        """Hand each tenant its outputs of a step."""
        by_tenant = defaultdict[str, list[StepOutput]](list)
        for output in outputs:
            by_tenant[output.sequence.tenant].append(output)
        for tenant, its_own in by_tenant.items():
            self._sinks[tenant](its_own)

    def _pause(self, queue: str, is_paused: bool) -> None:
        """Take no more messages of a queue, or take them again."""
        (self._paused_queues.add if is_paused else self._paused_queues.discard)(queue)
