"""The one thread that touches the device."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

import structlog

from llama_herd.worker.engine.device_error import raise_if_lost
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.figures import EngineStats
from llama_herd.worker.engine.interface import Abort, SequenceInfo
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_failures import failure_of

log = structlog.get_logger(__name__)

#: How long a stopping worker waits for its last step.
STOP_S = 2.0


class EngineThread(threading.Thread):
    """A `JobEngine`: steps the engine while there is work and sleeps while there is none.

    What other threads call passes to the engine. Outputs go to its sink.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="engine", daemon=True)
        self._engine = engine
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()  # calls to the engine
        self._num_submitted = self._num_seen = 0  # sequences: passed on here, and taken by the engine
        self._is_stopping = False
        self._stats = engine.stats
        self._moved_s = monotonic()
        engine.runner.on_layer = self._note_move

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def num_waiting(self) -> int:
        num_seen = self._num_seen  # first, as both only grow
        return self._stats.num_waiting + self._num_submitted - num_seen

    def is_stalled(self, stall_s: float) -> bool:
        """Whether there is work, but no step and no layer has finished for `stall_s`."""
        return self._stats.has_work and monotonic() - self._moved_s > stall_s

    def submit(self, *sequences: Sequence) -> None:
        """Pass on sequences; those of one job go together, since their job's start is confirmed once.

        One thread at a time submits.
        """
        self._num_submitted += len(sequences)
        self._inbox.put(partial(self._see, *sequences))

    def confirm(self, infos: Iterable[SequenceInfo]) -> None:
        self._inbox.put(partial(self._engine.confirm, tuple(infos), self._engine.clock()))

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        self._inbox.put(partial(self._engine.abort, tuple(infos), reason))

    def count_anew(self) -> None:
        self._inbox.put(self._engine.count_anew)

    def stop(self) -> None:
        """Stop after the current step; running sequences stay as they are.

        A step that does not end, or cannot hand on its outputs since Redis is away, ends with the process.
        """
        self._is_stopping = True
        self._inbox.put(_wake_up)
        self.join(STOP_S)

    def run(self) -> None:
        while True:
            self._take_waiting()
            if self._is_stopping:
                break
            try:
                self._engine.step()
            except Exception as error:
                raise_if_lost(error)  # it never answers again: end, and leave all jobs to other workers
                if not self._engine.stats.num_running:
                    raise  # no sequence to blame: the next step would fail too, so leave the jobs to others
                log.exception("step failed")
                self._engine.fail_running(failure_of(error))
            self._note_move()
            self._stats = self._engine.stats

    def _take_waiting(self) -> None:
        """Run the calls that have arrived; sleep here only without work, or while a step is put off.

        Every call is worth a step: a new sequence, one that may be computed now, or one to end.
        """
        call = _wake_up if self._engine.has_work else self._inbox.get()
        self._note_move()
        self._take(call)
        while not self._inbox.empty():
            self._take(self._inbox.get())
        while not self._is_stopping:
            self._engine.admit()  # perhaps into the last slot: then nothing more is waited for
            if not (delay_s := self._engine.delay_s):
                return
            try:
                self._take(self._inbox.get(timeout=delay_s))
            except Empty:
                return

    def _take(self, call: Callable[[], None]) -> None:
        call()
        self._stats = self._engine.stats

    def _see(self, *sequences: Sequence) -> None:
        self._num_seen += len(sequences)
        self._engine.submit(*sequences)

    def _note_move(self) -> None:
        self._moved_s = monotonic()


def _wake_up() -> None:
    """A call that does nothing."""
