"""The way into the engine: where a job that may have killed its workers is kept from its mates."""

import threading
from collections import deque

from llama_herd.worker.attempt import Attempt
from llama_herd.worker.engine_thread import EngineThread

#: How soon a job that is held here is let in once it may.
POLL_S = 0.05


class Gate:
    """Lets claimed jobs into the engine; one on its last attempt is alone there until it has a token.

    So if it is the one that kills, its mates are not in the batch that dies with it. Any thread may call.
    """

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._held: deque[Attempt] = deque()
        self._inside: list[Attempt] = []
        self._suspect: Attempt | None = None
        self._lock = threading.RLock()

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def put(self, attempt: Attempt) -> None:
        """Take a job that has sequences; the engine gets it now, or by a later `open`."""
        with self._lock:
            self._held.append(attempt)
            self.open()

    def open(self) -> None:
        """Let in all that may come in; what has been claimed anew or lost since is forgotten.

        What is cancelled or overdue harms nobody: the engine ends it and computes nothing of it.
        """
        with self._lock:
            self._held = deque(one for one in self._held if not one.is_over)
            self._inside = [one for one in self._inside if not one.is_over]
            for attempt in [one for one in self._held if one.is_aborted]:
                self._held.remove(attempt)
                self._let_in(attempt)
            while self._held and self._may_enter(self._held[0]):
                attempt = self._held.popleft()
                self._suspect = attempt if attempt.is_last else None
                self._let_in(attempt)

    def _let_in(self, attempt: Attempt) -> None:
        self._inside.append(attempt)
        for sequence in attempt.sequences:
            if sequence.finish_reason is None:
                self._engine.submit(sequence)

    def _may_enter(self, attempt: Attempt) -> bool:
        if self._suspect is not None and not self._is_cleared(self._suspect):
            return False
        return not (attempt.is_last and self._inside)

    def _is_cleared(self, suspect: Attempt) -> bool:
        """Whether it has a token in this attempt, or is over."""
        return suspect.first_token_s is not None or suspect.is_over
