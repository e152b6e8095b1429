"""All parts of a worker behind the Celery pool: who starts whom, and in which order they stop."""

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Self

import structlog
from redis.exceptions import RedisError

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.call import run_many
from llama_herd.tasks.connection import connect
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.worker_status import State, WorkerStatus
from llama_herd.worker import boot
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.engine_thread import EngineThread
from llama_herd.worker.eviction import refuse_eviction
from llama_herd.worker.finisher import Finisher
from llama_herd.worker.heartbeat import Heartbeat
from llama_herd.worker.intake import CeleryEnd, Intake
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.overflow import Overflow
from llama_herd.worker.owner import Owner
from llama_herd.worker.publisher import Publisher, Released
from llama_herd.worker.reconcile import Reconciler
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.stream import Author
from llama_herd.worker.watchdog import UNREADY_S, Poller, Watchdog

log = structlog.get_logger(__name__)

#: Shorter than a lease: a connection that is dead without saying so is replaced before jobs are lost by it.
REDIS_TIMEOUT_S = 2.0

#: How often a draining worker looks whether it is done.
DRAIN_POLL_S = 0.02


class Service:
    """The threads of one worker. Messages come in by `take`; everything else follows by itself.

    delivery -> intake -> engine -> publisher -> finisher -> delivery
    """

    def __init__(self, model: LoadedModel, settings: WorkerSettings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._model = model
        redis = connect(settings.redis_url, tries=1, timeout_s=REDIS_TIMEOUT_S)
        ledger = Ledger.of(settings, worker)
        self._owner = owner = Owner(redis, ledger)
        self._finisher = Finisher(redis, ledger)
        self._publisher = Publisher(
            owner, on_end=self._finish, on_lost=self._lose, on_released=self._give_back
        )
        self._engine = EngineThread(model.engine(settings, self._publisher.put))
        self._intake = Intake(
            owner,
            settings,
            model,
            author=Author(worker, settings.served_model),
            publisher=self._publisher,
            engine=self._engine,
            finisher=self._finisher,
        )
        self._heartbeat = Heartbeat(
            owner,
            attempts=self._publisher.attempts,
            engine=self._engine,
            status=self.status,
            stall_s=settings.stall_s,
        )
        overflow = Overflow(
            owner,
            attempts=self._publisher.attempts,
            status=self.status,
            close=self._close,
            on_released=lambda released: self._publisher.put(list(map(Released, released))),
        )
        self._reconciler = Reconciler(redis, ledger, overflow)
        self.watchdog = Watchdog(redis, ledger, settings.queue, settings.silence_s)
        self._poller: Poller | None = None
        self._state: State = "starting"
        self._is_hurried = threading.Event()

    @classmethod
    def start(cls, settings: WorkerSettings, worker: str) -> Self:
        """Load the model, then start all threads. Raises BadInput when Redis or the model cannot be used."""
        with connect(settings.redis_url, tries=0, timeout_s=REDIS_TIMEOUT_S) as redis:
            refuse_eviction(redis)
        started_s = monotonic()
        model = LoadedModel.load(settings, boot.device())
        log.info(
            "model loaded",
            model=settings.served_model,
            device=settings.device,
            seconds=round(monotonic() - started_s, 3),
        )
        service = cls(model, settings, worker)
        for thread in (service._publisher, service._engine, service._intake, service._heartbeat):
            thread.start()
        service._reconciler.start()
        service.watchdog.start()
        return service

    def note_consuming(self) -> None:
        """Messages are asked for from now on."""
        self._become("ready")

    def watch(self, poller: Poller) -> None:
        """Messages come by this connection from now on."""
        self._poller = poller
        self.watchdog.watch(poller)

    def take(self, delivery: Delivery) -> None:
        self._intake.put(delivery)

    def end(self, job_id: str, *, has_expired: bool) -> None:
        """Celery has revoked a job, or found it expired before it was run."""
        self._intake.put(CeleryEnd(job_id, "deadline" if has_expired else "revoked"))

    def status(self) -> WorkerStatus:
        pages = self._model.cache.pages
        return WorkerStatus(
            name=self._worker,
            state=self._state_now,
            model=self._settings.served_model,
            device=self._settings.device,
            slots=self._settings.slots,
            running=self._engine.num_running,
            waiting=self._engine.num_waiting,
            steps=self._engine.num_steps,
            kv_cache_tokens=pages.num_pages * PAGE_TOKENS,
            kv_cache_usage=round(pages.num_held / pages.num_pages, 4),
            prefix_hit_rate=round(self._model.cache.prefixes.hit_rate, 4),
            prefix_cache_hits=self._model.cache.prefixes.num_found_tokens,
        )

    @property
    def _state_now(self) -> State:
        """Ready is who has loaded its model, asks for messages and moves on."""
        if self._state == "ready" and self._engine.is_stalled(self._settings.stall_s):
            return "stalled"
        if self._state == "ready" and self.watchdog.silent_s >= UNREADY_S:
            return "silent"
        return self._state

    def _become(self, state: State) -> None:
        self._state = state
        self._heartbeat.hasten()

    def hurry(self) -> None:
        """Wait for no job any more; may be called from a signal handler."""
        self._is_hurried.set()

    def drain(self, grace_s: float, pump: Callable[[], None]) -> None:
        """Stop, in the order of a job's way, so that each part still finds the next one running.

        Running jobs get `grace_s` to end; `pump` runs the acks meanwhile. The rest is released: other workers
        go on from the recorded tokens.
        """
        self._become("stopping")
        self.watchdog.stop()
        self._reconciler.stop()
        self._intake.stop()
        deadline_s = monotonic() + grace_s
        while self._publisher.attempts and monotonic() < deadline_s and not self._is_hurried.is_set():
            pump()
            sleep(DRAIN_POLL_S)
        self._engine.stop()
        self._publisher.stop()
        self._release(list(self._publisher.attempts.values()))
        self._heartbeat.stop()
        self._finisher.stop()
        self._model.close()
        pump()

    def _release(self, attempts: list[Attempt]) -> None:
        owner = self._owner
        releases = [owner.ledger.release(a.job_id, owner.id, a.stream.epoch) for a in attempts]
        try:
            run_many(owner.redis, releases)
            log.info("jobs handed over", num_jobs=len(attempts))
        except RedisError as error:
            log.warning("jobs are left to their leases", num_jobs=len(attempts), error=type(error).__name__)

    def _close(self, is_closed: bool) -> None:
        """Ask for no more messages, or ask again."""
        if self._poller is not None:
            self._poller.is_closed = is_closed

    def _finish(self, attempt: Attempt) -> None:
        self._drop(attempt)
        self._finisher.settle(attempt.job_id, attempt.deliveries)

    def _lose(self, attempt: Attempt) -> None:
        self._drop(attempt)
        for delivery in attempt.deliveries:
            delivery.let_go()

    def _give_back(self, attempt: Attempt) -> None:
        self._drop(attempt)
        for delivery in attempt.deliveries:
            delivery.acknowledge()

    def _drop(self, attempt: Attempt) -> None:
        """Take a job that the engine may still be running out of it."""
        for sequence in attempt.sequences:
            if sequence.finish_reason is None:
                self._engine.abort(sequence, "dropped")
