"""The one thread that touches the device."""

import threading
from queue import SimpleQueue
from time import monotonic

import structlog
import torch

from llama_herd.worker.engine import Engine, failure_of
from llama_herd.worker.sequence import Abort, Sequence

log = structlog.get_logger(__name__)

#: How long a stopping worker waits for its last step.
STOP_S = 2.0


class EngineThread(threading.Thread):
    """Steps the engine while there is work and sleeps while there is none.

    Other threads talk to it by `submit` and `abort` only; what it has to say goes to the engine's sink.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="engine", daemon=True)
        self._engine = engine
        self._inbox: SimpleQueue[Sequence | None] = SimpleQueue()
        self._is_stopping = False
        self.num_steps = 0
        self._moved_s = monotonic()
        engine.on_layer = self._note_move

    @property
    def num_running(self) -> int:
        return len(self._engine.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._engine.scheduler.waiting) + self._inbox.qsize()

    def is_stalled(self, stall_s: float) -> bool:
        """Whether there is work, but neither a step nor a layer of one has ended for `stall_s`."""
        return self._engine.has_work and monotonic() - self._moved_s > stall_s

    def submit(self, sequence: Sequence) -> None:
        self._inbox.put(sequence)

    def abort(self, sequence: Sequence, reason: Abort) -> None:
        """End a sequence before the next step; `dropped` ends it without a word. The first reason stays."""
        if sequence.abort is None:
            sequence.abort = reason
            self._inbox.put(None)

    def stop(self) -> None:
        """Stop after the step that is under way; what runs is left as it is.

        A step that does not end, or cannot hand on since Redis is away, is left behind with the process.
        """
        self._is_stopping = True
        self._inbox.put(None)
        self.join(STOP_S)

    def run(self) -> None:
        while not self._is_stopping:
            self._take_waiting()
            try:
                self._engine.step()
            except torch.AcceleratorError:
                raise  # a device that has failed answers nobody any more: end, and leave all jobs to others
            except Exception as error:
                if not self._engine.scheduler.running:
                    raise  # none to blame, so the next step would fail the same way: others take what waits
                log.exception("step failed")
                self._engine.fail_running(failure_of(error))
            self.num_steps += 1
            self._note_move()

    def _take_waiting(self) -> None:
        """Move what has arrived into the engine; sleep here only while the engine has nothing to do."""
        while not self._is_stopping and not (self._engine.has_work and self._inbox.empty()):
            sequence = self._inbox.get()
            if sequence is not None:
                self._engine.submit(sequence)
        self._note_move()

    def _note_move(self) -> None:
        self._moved_s = monotonic()
