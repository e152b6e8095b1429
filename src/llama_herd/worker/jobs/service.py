"""All parts of a worker behind the Celery pool, and the order in which they start and stop."""

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol
from uuid import uuid4

from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.worker_status import WorkerState
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.message_notes import MessageNotes
from llama_herd.worker.engine.interface import JobEngine, Sink, StepOutput
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.figures import WorkerFigures
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.heartbeat import Heartbeat
from llama_herd.worker.jobs.intake import CeleryEnd, Intake
from llama_herd.worker.jobs.link_watch import LinkWatch
from llama_herd.worker.jobs.lost_messages import LostMessages
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.payer import Payer
from llama_herd.worker.jobs.preparer import Preparer
from llama_herd.worker.jobs.publisher import Publisher
from llama_herd.worker.jobs.revoker import Revoker
from llama_herd.worker.jobs.server_room import ServerRoom
from llama_herd.worker.jobs.standing import ModelSize, Standing
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.sweeper import Sweeper
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy
from llama_herd.worker.jobs.warm_up import NOBODY, WarmUp
from llama_herd.worker.jobs.watchdog import Poller, Watchdog, WatchedPart
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings

#: Shorter than a lease: a connection that died silently is replaced before jobs are lost by it.
REDIS_TIMEOUT_S = 2.0

#: How often a draining worker looks whether it is done.
DRAIN_POLL_S = 0.02


class ServedModel(Protocol):
    """A model as a service has it: what makes sequences of jobs, and the engine that computes these."""

    @property
    def plan(self) -> ModelSize: ...

    @property
    def maker(self) -> SequenceMaker: ...

    @property
    def needs_warm_up(self) -> bool:
        """Whether its first forwards take longer than later ones."""

    def job_engine(self, settings: WorkerSettings, sink: Sink) -> JobEngine:
        """Make the engine, which does not run yet."""

    def settle(self) -> None:
        """Wait until the model is as fast as it will be."""

    def close(self) -> None:
        """End what it has running."""


class Service:
    """The threads of one worker, of which each serves all of its tenants. Messages come in by `take`.

    delivery -> intake -> preparer -> engine -> publisher -> finisher -> delivery
    """

    def __init__(self, model: ServedModel, settings: WorkerSettings, worker: str) -> None:
        redis = connect(settings.redis_url, tries=1, timeout_s=REDIS_TIMEOUT_S)
        owner = uuid4().hex  # of leases; each start has a new one
        self._model = model
        self._is_hurried = threading.Event()
        self._engine = engine = model.job_engine(settings, self._hand_on)
        self._warm_up = WarmUp(model.maker if model.needs_warm_up else None)
        self.tenancies = tenancies = Tenancies(
            Tenancy.of(own, redis, owner, worker, model.maker, self._drop)
            for own in settings.by_queue.values()
        )
        room = ServerRoom.of(settings, redis, owner) if settings.is_foreign else None
        gate = SuspectGate.shared(room) if settings.tenants else SuspectGate(room=room)
        # From the end of a job's way to its beginning, as each part is handed those that come after it.
        self._finisher = finisher = Finisher(redis)
        self._payer = Payer(tenancies, finisher)
        self._publisher = publisher = Publisher(
            tenancies, engine, finisher, lambda attempt: self._intake.put(attempt)
        )
        preparer = Preparer(tenancies, model.maker, publisher, gate, engine)
        self._intake = Intake(tenancies, preparer, finisher)
        # Beside it: parts that look at the jobs in hand, and at the ledger.
        self._revoker = Revoker(worker, tenancies, self._payer.look_soon)
        self._overflow = Overflow(
            tenancies, gate, publisher, settings.num_places, lambda: engine.stats.away_s
        )
        self._links = links = LinkWatch(tenancies)
        notes = MessageNotes.at(Keys(settings.joint_tenant).unacked_key)
        self._sweeper = Sweeper(tenancies, self._overflow, links, LostMessages(redis, notes))
        parts: dict[str, WatchedPart] = {"publisher": publisher, "finisher": finisher}
        self._watchdog = Watchdog(tenancies, settings.silence_s, parts, lambda: self._heartbeat.report_soon())
        self.standing = Standing(
            settings, worker, model.plan, model.maker, tenancies, engine, self._watchdog, links
        )
        self._heartbeat = Heartbeat(
            tenancies, gate, notes, engine=engine, status=self.standing.status, stall_s=settings.stall_s
        )

    def start_engine(self) -> None:
        """Start the engine and let it become as fast as later. If that is interrupted, it stops first."""
        self._engine.start()
        try:
            self._warm_up.run(self._engine)
            self._model.settle()
            self._engine.count_anew()
        except BaseException:
            self._engine.stop()
            raise

    def start_threads(self) -> None:
        """Start all others; the engine runs already."""
        self._publisher.start()
        self._intake.start()
        self._heartbeat.start()
        self._sweeper.start()
        self._revoker.start()
        self._payer.start()
        self._watchdog.start()

    def drain(self, until_s: float, pump: Callable[[], None]) -> None:
        """Stop all parts in the order of a job's way, so that each part still finds the next one running.

        Running jobs may end until `until_s`, on the clock of time.monotonic, while `pump` runs the acks. The
        others are released: other workers continue them from the recorded tokens.
        """
        self._become("stopping")
        self._watchdog.stop()
        self._revoker.stop()
        self._sweeper.stop()
        self._intake.stop()
        while (
            any(one.claims for one in self.tenancies)
            and monotonic() < until_s
            and not self._is_hurried.is_set()
        ):
            pump()
            sleep(DRAIN_POLL_S)
        self._engine.stop()
        self._publisher.stop()
        self.tenancies.release_all()
        self._heartbeat.stop()
        self._payer.stop()
        self._finisher.stop()
        self._model.close()
        pump()

    def hurry(self) -> None:
        """End the grace period of running jobs; may be called from a signal handler."""
        self._is_hurried.set()

    def note_consuming(self) -> None:
        """Note that Celery takes messages from now on."""
        self._become("ready")

    def watch(self, poller: Poller) -> None:
        """Note the connection by which messages come from now on."""
        poller.pauses = self._pauses
        poller.num_others = lambda: max(one.heard.num_others for one in self.tenancies)
        poller.num_idle_others = lambda: max(one.num_idle_others for one in self.tenancies)
        self._watchdog.watch(poller)
        self._heartbeat.watch(poller)

    def take(self, delivery: Delivery) -> None:
        """Take a message; never blocks."""
        self._intake.put(delivery)

    def end(self, job_id: str, queue: str) -> None:
        """Note that Celery's remote control has ended a job of this queue that runs here."""
        self._intake.put(CeleryEnd(job_id, queue))

    @property
    def unheard_s(self) -> float:
        """How long Redis has taken no report of this worker."""
        return self._heartbeat.unheard_s

    @property
    def figures(self) -> WorkerFigures:
        """All figures of the worker; any thread may ask."""
        tenancies, publisher = list(self.tenancies), self._publisher
        return WorkerFigures(
            status=self.standing.status(),
            engine=self._engine.stats,
            jobs=sum((tenancy.figures for tenancy in tenancies), publisher.figures),
            grammars=self._model.maker.grammars.figures,
            num_put_back=sum(tenancy.num_put_back for tenancy in tenancies),
            num_unread_links=sum(one.num_messages for each in tenancies for one in self._links.unread(each)),
            num_later_tasks=sum(self.standing.watchdog.later.found.values()),
            num_waiting_steps=publisher.num_waiting,
            lag_s=publisher.lag_s,
        )

    def _pauses(self, queue: str) -> bool:
        """Whether no messages of a queue are to be taken now: of none while the server does not answer."""
        is_away = self._engine.stats.away_since_s is not None
        return is_away or not self.tenancies.for_queue(queue).takes_messages

    def _become(self, phase: WorkerState) -> None:
        self.standing.phase = phase
        self._heartbeat.report_soon()

    def _hand_on(self, outputs: list[StepOutput]) -> None:
        """Publish the outputs of a step; blocks while too many steps wait for Redis."""
        if outputs and outputs[0].sequence.tenant == NOBODY:
            self._warm_up.take(outputs)
            return
        self.tenancies.note_step(outputs)
        self._publisher.put(outputs)

    def _drop(self, attempt: Attempt) -> None:
        """Take a job out of the engine, if it still runs there."""
        if attempt.unended:
            self._engine.abort(attempt.unended, "dropped")
