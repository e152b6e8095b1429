"""The one thread that touches the device."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from time import monotonic

import structlog
import torch

from llama_herd.worker.engine.engine import Engine, failure_of
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.sequence_info import Abort, SequenceInfo
from llama_herd.worker.engine.stats import EngineStats

log = structlog.get_logger(__name__)

#: How long a stopping worker waits for its last step.
STOP_S = 2.0


class EngineThread(threading.Thread):
    """Steps the engine while there is work and sleeps while there is none.

    Other threads talk to it by `submit`, `confirm` and `abort` only, which are the engine's own, and read
    `stats`; what it has to say goes to the engine's sink.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="engine", daemon=True)
        self._engine = engine
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()  # what the engine is to be told
        self._is_stopping = False
        self._stats = engine.stats
        self._moved_s = monotonic()
        engine.runner.on_layer = self._note_move

    @property
    def stats(self) -> EngineStats:
        """How the engine stood after its last step, or after somebody came while it had nothing to do."""
        return self._stats

    @property
    def num_waiting(self) -> int:
        """Sequences that are not admitted yet, those included that the engine has not looked at."""
        return self._stats.num_waiting + self._inbox.qsize()

    def is_stalled(self, stall_s: float) -> bool:
        """Whether there is work, but neither a step nor a layer of one has ended for `stall_s`."""
        return self._stats.has_work and monotonic() - self._moved_s > stall_s

    def submit(self, sequence: Sequence) -> None:
        self._inbox.put(partial(self._engine.submit, sequence))

    def confirm(self, infos: Iterable[SequenceInfo]) -> None:
        self._inbox.put(partial(self._engine.confirm, tuple(infos)))

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        self._inbox.put(partial(self._engine.abort, tuple(infos), reason))

    def stop(self) -> None:
        """Stop after the step that is under way; what runs is left as it is.

        A step that does not end, or cannot hand on since Redis is away, is left behind with the process.
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
            except torch.AcceleratorError:
                raise  # a device that has failed answers nobody any more: end, and leave all jobs to others
            except Exception as error:
                if not self._engine.stats.num_running:
                    raise  # none to blame, so the next step would fail the same way: others take what waits
                log.exception("step failed")
                self._engine.fail_running(failure_of(error))
            self._note_move()
            self._stats = self._engine.stats

    def _take_waiting(self) -> None:
        """Move what has arrived into the engine; sleep here only while the engine has nothing to do.

        Whatever wakes it up is worth a step: a sequence, one that may be computed now, one to be ended.
        """
        tell = _wake_up if self._engine.has_work else self._inbox.get()
        self._note_move()
        self._take(tell)
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, tell: Callable[[], None]) -> None:
        tell()
        self._stats = self._engine.stats

    def _note_move(self) -> None:
        self._moved_s = monotonic()


def _wake_up() -> None:
    """There is nothing to tell."""
