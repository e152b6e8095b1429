"""A reader's place in one job's events: what to pass on, what to drop, when to look into the stream.

Live events come by a channel, which forgets; the stream keeps them all. A reader subscribes, reads the
stream from its place, goes on live, and reads the stream again whenever it may have missed something. Both
clients are this class and a connection.
"""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from pydantic import ValidationError

from llama_herd.errors import JobNotFound, RecordUnreadable
from llama_herd.tasks.events import End, Event, parse_event
from llama_herd.tasks.ledger.answers import Record

#: After so long without an event the stream is read: a channel may lose one without a trace.
SILENCE_S = 2.0


class Follower:
    """Reads one job from the event after number `after`. `timeout_s` is for all of it; None: no limit.

    `waits`: also for a job that is not there yet.
    """

    def __init__(
        self, job_id: str, *, after: int = 0, timeout_s: float | None = None, waits: bool = True
    ) -> None:
        self.job_id = job_id
        self.last = after
        self.has_ended = False
        self._after = after
        #: Whether the record has said that the job is over, and the stream was not read since.
        self._is_final = False
        #: Whether the stream must be read before anything live is of use.
        self.is_behind = True
        self._waits = waits
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else monotonic() + timeout_s

    def wait_s(self) -> float:
        """How long to wait for a live event."""
        left_s = SILENCE_S if self._until_s is None else self._until_s - monotonic()
        return max(0.0, min(SILENCE_S, left_s))

    def live(self, message: Mapping[str, Any] | None) -> list[Event]:
        """Events to pass on for what a subscription brought; None stands for silence.

        A confirmed subscription, also the one after a lost connection, means that the stream must be read.
        Every producer of the tenant may publish there: what is no event of this job counts as nothing.
        """
        if message is None or message["type"] != "message":
            self.is_behind = True
            return []
        try:
            event = parse_event(message["data"])
        except ValidationError:
            return []
        return self._accept([event]) if event.job == self.job_id else []

    def stored(self, events: Iterable[Event]) -> list[Event]:
        """Events to pass on of those in the stream. Raises RecordUnreadable when they are not this job's."""
        found = list(events)
        if any(event.job != self.job_id for event in found):
            raise RecordUnreadable(f"the stream of job {self.job_id} holds an event of another job")
        fresh = self._accept(found)
        if self.is_behind:
            raise RecordUnreadable(f"the stream of job {self.job_id} lacks the event after {self.last}")
        return fresh

    def _accept(self, events: Iterable[Event]) -> list[Event]:
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

    def check_record(self, record: Record | None) -> None:
        """The stream holds nothing new: is anything to come?

        Raises JobNotFound for a job that was known once and is forgotten, for one that was never seen and is
        not waited for, and at the time limit for one that is; TimeoutError at the time limit for one that
        goes on; RecordUnreadable for one that is over and whose stream holds no end.
        """
        is_over = self._until_s is not None and monotonic() >= self._until_s
        if record is None and (self.last or is_over or not self._waits):
            raise JobNotFound.of(self.job_id)
        if record is None or not record.is_final:
            self.check_time()
        elif self.last == self._after and self.last >= max(record.seq, 1):
            self.has_ended = True  # who asks for what comes after the end gets nothing
        elif self._is_final:
            raise RecordUnreadable(f"job {self.job_id} is over, but its stream holds no end")
        else:
            # It may have ended between the two looks: look once more.
            self._is_final = True
            self.is_behind = True

    def check_stream(self, kept: list[Event]) -> None:
        """The same for a reader who may not see records; `kept` are the events from number `last` on."""
        if self.last and kept and isinstance(kept[0], End):
            self.has_ended = True
        else:
            self.check_time()

    def check_time(self) -> None:
        """Raises TimeoutError at the limit."""
        if self._until_s is not None and monotonic() >= self._until_s:
            raise TimeoutError(f"job {self.job_id} has not ended within {self._timeout_s} s")
