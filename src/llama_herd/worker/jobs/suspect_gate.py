"""Lets jobs into preparation and the engine; a job that may have killed workers goes in alone."""

import threading
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Self

from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.server_room import ServerRoom

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


@dataclass(frozen=True)
class GateOpen:
    """All may enter, a suspect only an empty room. No suspect closes the gate before `others_until_s`."""

    others_until_s: float = 0.0


@dataclass(frozen=True)
class GateClosed:
    """Nobody enters until this suspect can, alone: others have passed it for long enough."""

    suspect: Attempt
    since_s: float


@dataclass(frozen=True)
class SuspectInside:
    """A suspect is inside, and nobody else enters. The gate was in the state `before` when it came."""

    suspect: Attempt
    since_s: float
    before: GateOpen | GateClosed


@dataclass(eq=False, kw_only=True)
class SuspectGate:
    """Lets claimed jobs in to be prepared and computed; one that one more death would end only alone.

    So if the suspect kills the worker, no other job is hurt. It is alone until its attempt is sound, and then
    it counts as any other. Where a server computes, a suspect is alone in the server. Any thread may call.
    """

    room: ServerRoom | None = None  # of the server, if there is one
    patience_s: float = PATIENCE_S
    closed_s: float = CLOSED_S
    clearing_s: float = CLEARING_S
    alone_s: float = inf  # after this a suspect counts as any other job, sound or not
    _inside: list[Attempt] = field(init=False, default_factory=list)
    _asking: list[Attempt] = field(init=False, default_factory=list)  # suspects that may not enter yet
    _state: GateOpen | GateClosed | SuspectInside = field(init=False, default_factory=GateOpen)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    @classmethod
    def shared(cls, room: ServerRoom | None = None) -> Self:
        """The gate of a worker of several tenants: no suspect delays jobs of other tenants for long."""
        return cls(room=room, closed_s=0.0, clearing_s=0.0, alone_s=SHARED_ALONE_S)

    @property
    def is_closed(self) -> bool:
        """Whether a suspect is alone inside, or waits until the others have left; also another worker's."""
        with self._lock:
            self._look()
            return not isinstance(self._state, GateOpen) or self._taken_s is not None

    def enter(self, attempt: Attempt) -> bool:
        """Let a job in if it may enter now; if not, ask again later."""
        with self._lock:
            self._look()
            state = self._state
            if isinstance(state, SuspectInside) or not self._may_enter(attempt, state):
                if attempt.is_last:
                    self._wait(attempt)
                return False
            self._inside.append(attempt)
            if attempt.is_last:
                self._state = SuspectInside(attempt, monotonic(), state)
            return True

    def leave(self, attempt: Attempt) -> None:
        """Take a job out again that has not begun."""
        with self._lock:
            if attempt in self._inside:  # if not, it is over
                self._inside.remove(attempt)
            if isinstance(self._state, SuspectInside) and self._state.suspect is attempt:
                self._state = self._state.before

    def must_leave(self, attempt: Attempt) -> bool:
        """Whether a job has used up its time to end, while a suspect waits to be alone."""
        with self._lock:
            state = self._state.before if isinstance(self._state, SuspectInside) else self._state
            since_s = [] if self._taken_s is None else [self._taken_s]
            if isinstance(state, GateClosed) and attempt is not state.suspect:
                since_s.append(state.since_s)
            is_due = any(monotonic() - one > self.clearing_s for one in since_s)
            return is_due and attempt in self._inside

    def keep_room(self) -> None:
        """Tell the server's other workers what is inside, and hear of them. Raises RedisError."""
        if self.room is not None:
            with self._lock:
                self._look()
                is_closed = not isinstance(self._state, GateOpen)
                self.room.keep(has_jobs=bool(self._inside), is_closed=is_closed)

    def leave_room(self) -> None:
        """Tell the server's other workers that nothing of this one is there any more. Raises RedisError."""
        if self.room is not None:
            self.room.keep(has_jobs=False, is_closed=False)

    @property
    def _taken_s(self) -> float | None:
        """Since when a suspect of another worker has the server alone, or waits for that."""
        return None if self.room is None else self.room.taken_s

    def _look(self) -> None:
        """Forget jobs that are over, and with them the state that was for one of these."""
        now_s = monotonic()
        self._inside = [one for one in self._inside if not one.is_over]
        self._asking = [one for one in self._asking if not one.is_over and one not in self._inside]
        if isinstance(self._state, SuspectInside) and self._is_cleared(self._state, now_s):
            self._state = self._state.before
        if isinstance(self._state, GateClosed):
            suspect = self._state.suspect
            if suspect.is_over or suspect in self._inside:
                self._state = self._after(self._state, now_s)

    def _after(self, closed: GateClosed, now_s: float) -> GateOpen | GateClosed:
        """Closed for the next suspect, while time is left; then open for as long as it was closed."""
        is_time_left = now_s - closed.since_s < self.closed_s
        suspect = next(filter(self._has_waited, self._asking), None) if is_time_left else None
        return (
            GateOpen(2 * now_s - closed.since_s) if suspect is None else GateClosed(suspect, closed.since_s)
        )

    def _is_cleared(self, alone: SuspectInside, now_s: float) -> bool:
        suspect = alone.suspect
        return suspect.is_over or suspect.is_sound or now_s - alone.since_s > self.alone_s

    def _may_enter(self, attempt: Attempt, state: GateOpen | GateClosed) -> bool:
        if isinstance(state, GateClosed) and state.suspect is not attempt:
            return False
        if attempt.is_last and self._inside:
            return False
        is_closed = isinstance(state, GateClosed)
        return self.room is None or self.room.enter(must_be_alone=attempt.is_last, is_closed=is_closed)

    def _wait(self, suspect: Attempt) -> None:
        """Note who asks; close the gate for one that other jobs have passed for long enough."""
        if suspect not in self._asking:
            self._asking.append(suspect)
        now_s, state = monotonic(), self._state
        if isinstance(state, GateOpen) and self._has_waited(suspect) and now_s >= state.others_until_s:
            self._state = GateClosed(suspect, now_s)

    def _has_waited(self, suspect: Attempt) -> bool:
        return monotonic() - suspect.claimed_s > self.patience_s
