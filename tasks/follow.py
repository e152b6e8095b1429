"""A reader's place in one job's events: what to pass on, what to drop, when to look into the stream.

Live events come by a channel, which forgets; the stream keeps them all. A reader subscribes, reads the
stream from its place, goes on live, and reads the stream again whenever it may have missed something. Both
clients are this class and a connection.
"""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from llama_herd.errors import JobNotFound
from llama_herd.tasks.answers import Record
from llama_herd.tasks.events import End, Event, parse_event

#: After so long without an event the stream is read: a channel may lose one without a trace.
SILENCE_S = 2.0


class Follower:
    """Reads one job from the event after number `after`. `timeout_s` is for all of it; None: no limit."""

    def __init__(self, job_id: str, *, after: int = 0, timeout_s: float | None = None) -> None:
        self.job_id = job_id
        self.last = after
        self.has_ended = False
        #: Whether the stream must be read before anything live is of use.
        self.is_behind = True
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else monotonic() + timeout_s

    def wait_s(self) -> float:
        """How long to wait for a live event."""
        left_s = SILENCE_S if self._until_s is None else self._until_s - monotonic()
        return max(0.0, min(SILENCE_S, left_s))

    def live(self, message: Mapping[str, Any] | None) -> list[Event]:
        """Events to pass on for what a subscription brought; None stands for silence.

        A confirmed subscription, also the one after a lost connection, means that the stream must be read.
        """
        if message is None or message["type"] != "message":
            self.is_behind = True
            return []
        return self.accept([parse_event(message["data"])])

    def accept(self, events: Iterable[Event]) -> list[Event]:
        """Those events that follow on what was passed on before, in order."""
        fresh: list[Event] = []
        self.is_behind = False
        for event in events:
            if event.seq <= self.last or self.has_ended:
                continue
            if event.seq > self.last + 1:
                self.is_behind = True
                break
            self.last = event.seq
            self.has_ended = isinstance(event, End)
            fresh.append(event)
        return fresh

    def settle(self, record: Record | None) -> None:
        """The stream holds nothing new: is anything to come?

        Raises JobNotFound for a job that was known once and is forgotten, and at the time limit for one that
        was never seen; raises TimeoutError at the time limit for one that goes on.
        """
        is_over = self._until_s is not None and monotonic() >= self._until_s
        if record is None and (self.last or is_over):
            raise JobNotFound(f"no job {self.job_id}: it was never submitted, or has been forgotten")
        if record is not None and record.is_final and record.seq <= self.last:
            self.has_ended = True
        else:
            self.check_time()

    def settle_by(self, kept: list[Event]) -> None:
        """The same for a reader who may not see records; `kept` are the events from number `last` on."""
        if self.last and kept and isinstance(kept[0], End):
            self.has_ended = True
        else:
            self.check_time()

    def check_time(self) -> None:
        """Raises TimeoutError at the limit."""
        if self._until_s is not None and monotonic() >= self._until_s:
            raise TimeoutError(f"job {self.job_id} has not ended within {self._timeout_s} s")
