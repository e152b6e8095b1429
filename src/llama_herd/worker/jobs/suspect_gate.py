"""Lets jobs into preparation and the engine; a job that may have killed workers goes in alone."""

import threading
from math import inf
from time import monotonic
from typing import Self

from llama_herd.worker.jobs.attempt import Attempt

#: How soon a job that may not enter asks again.
POLL_S = 0.05

#: How long other jobs may pass a suspect. Then the gate closes until the suspect has had its turn.
PATIENCE_S = 30.0

#: How long the gate stays closed at most, while one suspect follows the other.
CLOSED_S = 30.0

#: How long the jobs inside may go on after the gate has closed. Then they are released to other workers.
CLEARING_S = 5.0

#: How long a suspect is alone at most in a worker of several tenants. Anybody who may write to the keys of
#: one tenant can make any of its jobs a suspect.
SHARED_ALONE_S = 0.5


class SuspectGate:
    """Lets claimed jobs in to be prepared and computed; a suspect, on its last attempt, only alone.

    So if the suspect kills the worker, no other job is hurt. It is alone until its attempt is sound, and then
    it counts as any other. Any thread may call.
    """

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        closed_s: float = CLOSED_S,
        clearing_s: float = CLEARING_S,
        alone_s: float = inf,
    ) -> None:
        """After `alone_s` a suspect counts as any other job, sound or not."""
        self._patience_s = patience_s
        self._max_closed_s = closed_s
        self._clearing_s = clearing_s
        self._alone_s = alone_s
        self._inside: list[Attempt] = []
        self._alone: Attempt | None = None
        self._alone_since_s = 0.0
        self._asking: list[Attempt] = []  # suspects that may not enter yet
        self._next: Attempt | None = None  # the suspect for which the gate is closed
        self._closed_s = 0.0  # when it closed
        self._others_until_s = 0.0  # it does not close again before
        self._lock = threading.Lock()

    @classmethod
    def shared(cls) -> Self:
        """The gate of a worker of several tenants: no suspect delays jobs of other tenants for long."""
        return cls(closed_s=0.0, clearing_s=0.0, alone_s=SHARED_ALONE_S)

    @property
    def is_closed(self) -> bool:
        """Whether a suspect is alone inside, or waits until the others have left."""
        with self._lock:
            self._look()
            return self._next is not None or self._alone is not None

    def enter(self, attempt: Attempt) -> bool:
        """Let a job in if it may enter now; if not, ask again later."""
        with self._lock:
            self._look()
            if not self._may_enter(attempt):
                if attempt.is_last and attempt not in self._asking:
                    self._asking.append(attempt)
                return False
            self._inside.append(attempt)
            if attempt.is_last:
                self._alone, self._alone_since_s = attempt, monotonic()
            return True

    def leave(self, attempt: Attempt) -> None:
        """Take a job out again that has not begun."""
        with self._lock:
            if attempt in self._inside:  # if not, it is over
                self._inside.remove(attempt)
            if self._alone is attempt:
                self._alone = None

    def must_leave(self, attempt: Attempt) -> bool:
        """Whether a job has used up its time to end, while a suspect waits to be alone."""
        with self._lock:
            is_due = self._next is not None and monotonic() - self._closed_s > self._clearing_s
            return is_due and attempt is not self._next and attempt in self._inside

    def _look(self) -> None:
        """Forget jobs that are over. After the suspects, the gate stays open for as long as it was closed."""
        now_s = monotonic()
        self._inside = [one for one in self._inside if not one.is_over]
        self._asking = [one for one in self._asking if not one.is_over and one not in self._inside]
        if self._alone is not None and self._is_cleared(self._alone, now_s):
            self._alone = None
        had_its_turn = self._next in self._inside and self._alone is None
        if self._next is None or not (self._next.is_over or had_its_turn):
            return
        is_time_left = now_s - self._closed_s < self._max_closed_s
        self._next = next(filter(self._has_waited, self._asking), None) if is_time_left else None
        if self._next is None:
            self._others_until_s = 2 * now_s - self._closed_s

    def _is_cleared(self, suspect: Attempt, now_s: float) -> bool:
        return suspect.is_over or suspect.is_sound or now_s - self._alone_since_s > self._alone_s

    def _may_enter(self, attempt: Attempt) -> bool:
        if self._next not in (None, attempt) or self._alone is not None:
            return False
        if attempt.is_last and self._inside:
            self._wait(attempt)
            return False
        return True

    def _wait(self, suspect: Attempt) -> None:
        """Close the gate for a suspect that other jobs have passed for long enough."""
        now_s = monotonic()
        if self._next is None and self._has_waited(suspect) and now_s >= self._others_until_s:
            self._next, self._closed_s = suspect, now_s

    def _has_waited(self, suspect: Attempt) -> bool:
        return monotonic() - suspect.claimed_s > self._patience_s
