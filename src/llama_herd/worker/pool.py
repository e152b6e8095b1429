"""The connection to Celery: a pool whose one engine runs all jobs at once.

A pool is below Celery's own strategy, so Celery still does revoke, expires, rate limits, events and prefetch.
Jobs have no threads of their own: the engine batches them, and Celery's tracer runs when a job is over.
"""

import atexit
import gc
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from types import MethodType
from typing import TYPE_CHECKING, Any

import structlog
from celery import signals
from celery.concurrency.base import BasePool
from celery.worker import control, state
from celery.worker.request import Request

from llama_herd.errors import BadInput
from llama_herd.ops.logs import is_for_people
from llama_herd.ops.systemd import report_to_systemd
from llama_herd.worker import process
from llama_herd.worker.broker import celery_config
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.hub_waker import HubWaker
from llama_herd.worker.broker.side_task import SideTask
from llama_herd.worker.health import WorkerHealth

if TYPE_CHECKING:
    from llama_herd.worker.jobs.service import Service
    from llama_herd.worker.jobs.watchdog import Poller

log = structlog.get_logger(__name__)

#: How long a stopping worker may take after the grace period of its jobs, whether Redis answers or not.
LEAVE_S = 2.0

_SIZE = "a running worker keeps its number of slots. Fix: restart it with another HERD_SLOTS"
_QUEUES = "a running worker reads the queues of its models. Fix:"
#: Celery's commands that are refused, and why. A worker that has left its queue would still count as ready.
REFUSED_COMMANDS = {
    **dict.fromkeys(("pool_grow", "pool_shrink", "pool_restart", "autoscale"), _SIZE),
    "cancel_consumer": f"{_QUEUES} herd drain for one worker, herd pause for all workers of a queue",
    "add_consumer": f"{_QUEUES} another worker, or herd resume for a queue that is paused",
}

#: How many more objects there are before Python looks for cycles. Jobs leave none.
COLLECT_AT = 50_000

#: Threads for the few Celery tasks that are not generation, such as chord_unlock.
NUM_SIDE_THREADS = 2

#: Whether the process is not to hear that its terminal closes, as under nohup.
_IS_DEAF_TO_HANGUP = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

# Celery loads its pool first, and then builds its worker.
signals.celeryd_init.connect(celery_config.configure, weak=False)


class EnginePool(BasePool):  # type: ignore[misc]
    """Hands messages to the service, and runs Celery's callbacks on the hub's thread."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False

    _service: "Service"
    _side: ThreadPoolExecutor
    _hub: Any = None
    _waker: HubWaker | None = None
    _told_s: float | None = None  # when a signal told it to stop, on the clock of time.monotonic
    _must_leave = False  # a signal has come before the model was loaded
    _exit_code: int | None = None  # of a worker that has stopped, or was told to before the model was loaded

    def on_start(self) -> None:
        """Load the model before the consumer starts, so that no message is taken before it can run."""
        self._does_debug = False  # the pool's debug line would show arguments, and so prompts
        self._side = ThreadPoolExecutor(NUM_SIDE_THREADS, thread_name_prefix="side")
        self._handle_stops(self._stop_loading)
        atexit.register(self._end_process)
        control.Panel.data.update({name: partial(_refuse, why) for name, why in REFUSED_COMMANDS.items()})
        gc.disable()  # what is imported lives to the end: to look through it again and again takes 0.2 s
        try:
            self._service = self.start_service(str(self.options["initargs"][1]))
        except BadInput as error:
            print(f"herd worker: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        signals.worker_ready.connect(self._announce, weak=False)
        signals.task_revoked.connect(self._on_revoked, weak=False)
        self._handle_stops(self._on_signal)
        signal.signal(signal.SIGALRM, _exit_late)
        signals.worker_shutdown.connect(self._note_exit_code, weak=False)
        gc.collect()
        gc.freeze()  # what lives to the end: to look at all of it takes 80 ms, in which no stream goes on
        gc.set_threshold(COLLECT_AT)
        if self._must_leave:  # some library has swallowed the exit
            self._on_signal(signal.SIGTERM, None)

    def start_service(self, worker: str) -> "Service":
        """Load the model and start all threads of the worker of this name; the collector of garbage is off.

        Who asks for its health meanwhile is answered. Raises BadInput.
        """
        settings, health = process.own_settings(), WorkerHealth()
        facts = {"model": settings.served_model, "file": str(settings.model), "device": settings.device}
        log.info("loading model", **facts)  # before torch is imported, which takes long on a busy machine
        from llama_herd.ops.exporter import Exporter

        exporter = Exporter.start(settings, health.pages)
        report_to_systemd(health.live, health.ready)
        # Of a worker's own engine this imports torch, which must not happen before the device is pinned.
        from llama_herd.worker.collector import LoadingCollector, WorkerCollector
        from llama_herd.worker.engine.device_error import lost_by
        from llama_herd.worker.startup import start_service

        if exporter is not None:
            exporter.show(LoadingCollector(settings.served_model, health))
        gc.freeze()
        gc.enable()
        try:
            service = start_service(settings, worker, health)
        except Exception as error:
            if (lost := lost_by(error)) is not None:
                process.end_or_begin_anew(lost)
            raise
        if exporter is not None:
            exporter.show(WorkerCollector(lambda: service.figures, service.standing.kind))
        return service

    def register_with_event_loop(self, hub: Any) -> None:
        self._hub, self._waker = hub, HubWaker.of(hub)
        self._service.note_consuming()

    def watch(self, poller: "Poller") -> None:
        """The consumer calls this for each connection that brings messages."""
        self._service.watch(poller)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        *_: Any,
        callback: MethodType,
        **__: Any,
    ) -> Delivery | None:
        """Take a message; `callback` is a method of its request.

        Runs on the hub's thread: never parses, never blocks, never raises.
        """
        request: Request = callback.__self__
        target = partial(target, app=request.task.app)  # the default is the process's app
        if getattr(request.task, "engine_task", False):
            delivery = Delivery(tuple(args), request, self._call_soon, request.time_limit_s)
            self._service.take(delivery)
            return delivery
        self.run_aside(SideTask(target, tuple(args), request, self._call_soon).run)
        return None

    def run_aside(self, act: Callable[[], None]) -> None:
        """Run something slow on a side thread; it must not raise."""
        self._side.submit(act)

    def on_stop(self) -> None:
        """Let running jobs finish for a while, release the others, and run the acks.

        The hub's loop has ended, and this is its thread, so its callbacks run from here. A cold shutdown has
        no `close` before it, and no grace period.
        """
        is_warm = self._state == self.CLOSE
        grace_s = process.own_settings().grace_s if is_warm else 0.0
        self._service.drain((self._told_s or monotonic()) + grace_s, self._pump)
        self._side.shutdown()
        self._pump()

    on_terminate = on_stop

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: a signal tells the intake of a revoke, and there is no process to kill."""

    def _handle_stops(self, handler: Callable[[int, Any], None]) -> None:
        """Replace Celery's handlers, whose cold shutdown would store running jobs as to be retried.

        That for SIGHUP begins the command anew, also under nohup, and not every command can be begun so.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if _IS_DEAF_TO_HANGUP else handler)

    def _stop_loading(self, *_: Any) -> None:
        """Exit at once: before the model is loaded the worker has no jobs, and loading may take minutes."""
        self._must_leave, self._exit_code = True, 0
        raise SystemExit(0)

    def _on_signal(self, number: int, _: Any) -> None:
        """Stop, and let jobs finish for a while; SIGQUIT or a second signal releases them at once."""
        grace_s = process.own_settings().grace_s
        if number == signal.SIGQUIT or state.should_stop is not None:
            self._service.hurry()
            grace_s = 0.0
        self._told_s = self._told_s or monotonic()
        left_s = signal.getitimer(signal.ITIMER_REAL)[0] or inf
        signal.setitimer(signal.ITIMER_REAL, min(left_s, grace_s + LEAVE_S))
        state.should_stop = 0

    def _note_exit_code(self, sender: Any, **_: Any) -> None:
        self._exit_code = sender.exitcode or 0

    def _end_process(self) -> None:
        """End the process of a worker that has stopped, without the interpreter's teardown.

        It frees all of torch, one object after the other: a second of a core, and several if others want it.
        Handlers of signals are gone by then, so a second signal would be another end.
        """
        if self._exit_code is not None:
            with suppress(OSError, ValueError):  # closed, or nobody reads
                sys.stdout.flush()
            process.end_at_once(self._exit_code)
        signal.setitimer(signal.ITIMER_REAL, 0)  # from here on the signal has no handler

    def _announce(self, **_: Any) -> None:
        """Say what a person wants to know about a new worker, the most important first."""
        settings, facts = process.own_settings(), self._service.standing.facts
        if is_for_people(settings.log_format) and sys.stderr.isatty():
            print("\n".join(["herd worker", *(f"  {n:<15} {v}" for n, v in facts.items())]), file=sys.stderr)
        else:
            log.info("worker ready", **facts)

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "engine": self._service.standing.status().model_dump()}

    def _on_revoked(self, sender: Any, request: Any, **_: Any) -> None:
        """Have a job ended that runs here; other tasks are ended by Celery."""
        if getattr(sender, "engine_task", False):
            self._service.end(request.id, request.delivery_info["routing_key"])

    def _call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function on the hub's thread.

        Callbacks that it adds to the hub, such as its ack, run right after it: the hub itself would run them
        after its next poll, up to a second later.
        """
        self._hub.call_soon(self._run_and_pump, function, args)
        if self._waker is not None:
            self._waker.wake()

    def _run_and_pump(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        function(*args)
        self._pump()

    def _pump(self) -> None:
        if self._hub is not None:
            for callback in self._hub._pop_ready():
                callback()


def _refuse(why: str, _: Any, **__: Any) -> dict[str, str]:
    answer: dict[str, str] = control.nok(why)
    return answer


def _exit_late(*_: Any) -> None:
    """Exit: the time to stop is over, and some part still waits for a Redis that does not answer."""
    log.warning("stop took too long, running jobs left to their leases")
    process.end_at_once(0)
