"""The publisher's calls: events in lots, each call repeated byte for byte until Redis answers."""

from collections.abc import Iterator, Sequence as Rows
from math import inf
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import structlog
from redis.exceptions import RedisError, ResponseError

from llama_herd.tasks.connection.broken_connections import LARGE_BYTES, BrokenConnections
from llama_herd.tasks.connection.complaint import redis_complaint
from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.answers import Emission, Emitted
from llama_herd.tasks.ledger.held_jobs import MAX_ENTRIES, EmitEntry, TenantEntry, emit
from llama_herd.tasks.ledger.redis_call import RedisCall, run_calls
from llama_herd.worker.insisting import insist
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.tenancy import Tenancies

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Pause before events that did not fit into a full Redis are sent again.
FULL_S = 0.2

#: Most characters of Redis' complaint in a job's error.
MAX_REASON = 120

#: The reason in the error of a job whose event breaks connections.
BREAKING = "it breaks the connection"

#: An event that is to be sent, and the attempt that it is of.
Outgoing = tuple[Attempt, EmitEntry]


class CallRefused(Exception):
    """Redis will never accept a call."""


class EventCalls:
    """Sends events of jobs to their ledgers.

    Redis may stay away until these calls are to give up: then they raise Stopped.
    """

    def __init__(self, tenancies: Tenancies) -> None:
        self._tenancies = tenancies
        self._redis, self._owner = tenancies.redis, tenancies.owner
        self._give_up_s = inf
        #: Calls that Redis has answered.
        self.num_answered = 0
        #: Calls that were repeated, since Redis did not answer or was full.
        self.num_repeats = 0
        self._is_full = False

    def give_up_in(self, seconds: float) -> None:
        self._give_up_s = monotonic() + seconds

    @property
    def is_to_give_up(self) -> bool:
        return monotonic() >= self._give_up_s

    def send(self, events: Rows[Outgoing]) -> list[tuple[Outgoing, Emitted]]:
        """Send events; return each with the ledger's answer, after a pause where Redis is full."""
        answered = [pair for lot in _lots(events) for pair in self._send_lot(lot)]
        complaint = next((answer.reason for _, answer in answered if answer.is_full), "")
        if complaint:
            self.num_repeats += 1
            if not self._is_full:
                reason = f"Redis {redis_complaint(ResponseError(complaint))}"
                log.warning("Redis takes no events, retrying", reason=reason)
            sleep(FULL_S)
        self._is_full = bool(complaint)
        return answered

    def insist(
        self,
        call: RedisCall[T],
        breaks: BrokenConnections | None = None,
        *,
        beside: Rows[RedisCall[Any]] = (),
    ) -> T:
        """Repeat a call, byte for byte, until it is answered: it may have run though its reply was lost.

        `breaks` counts the connections that a large call has broken. Nobody asks for the answers to the calls
        `beside` it, in the same round trip. Raises CallRefused when repeating cannot help, and Stopped.
        """

        def act() -> T:
            answer, *_ = run_calls(self._redis, [call, *beside])
            if isinstance(answer, ResponseError):
                raise answer
            self.num_answered += 1
            return cast(T, answer)

        def judge(error: Exception) -> None:
            if not isinstance(error, RedisError):
                raise error
            if not is_temporary(error):
                raise CallRefused(redis_message(error)[:MAX_REASON]) from None
            self.num_repeats += 1
            if breaks is not None:
                breaks.note(self._redis, error)
                if breaks.are_no_accident:
                    raise CallRefused(BREAKING) from None

        return insist(act, "events", judge=judge, pause=self._pause)

    def _send_lot(self, events: list[Outgoing]) -> list[tuple[Outgoing, Emitted]]:
        """Make the call. If Redis refuses it, halve it, until the one job that breaks it stands alone."""
        entries = [TenantEntry(self._tenancies.for_attempt(one).ledger, entry) for one, entry in events]
        call = emit(self._owner, entries, self._tenancies.first.ledger)
        attempts = list(dict.fromkeys(attempt for attempt, _ in events))
        is_large = len(attempts) == 1 and any(_is_large(entry) for _, entry in events)
        try:
            answers = self.insist(call, BrokenConnections() if is_large else None, beside=_starts(events))
            return list(zip(events, answers, strict=True))
        except CallRefused as error:
            if len(attempts) == 1:
                refused = Emitted(Emission.REFUSED, reason=str(error))
                return [(event, refused) for event in events]
        first = set(attempts[: len(attempts) // 2])
        front = [event for event in events if event[0] in first]
        back = [event for event in events if event[0] not in first]
        return self._send_lot(front) + self._send_lot(back)

    def _pause(self, pause_s: float) -> bool:
        """Sleep, unless it is time to give up; returns whether it is."""
        if self.is_to_give_up:
            return True
        sleep(pause_s)
        return False


def _lots(events: Rows[Outgoing]) -> Iterator[list[Outgoing]]:
    """The events of each call, no more than one takes. A job with a large event is alone, at the end."""
    large = dict.fromkeys(attempt for attempt, entry in events if _is_large(entry))
    small = [event for event in events if event[0] not in large] if large else events
    for lot in (small, *([event for event in events if event[0] is one] for one in large)):
        for start in range(0, len(lot), MAX_ENTRIES):
            yield list(lot[start : start + MAX_ENTRIES])


def _starts(events: Rows[Outgoing]) -> list[RedisCall[Any]]:
    """Return the calls that tell Celery's clients which of these jobs start."""
    begun = [attempt for attempt, entry in events if entry.kind == "started" and attempt.deliveries]
    return [call for call in (attempt.deliveries[0].start for attempt in begun) if call is not None]


def _is_large(entry: EmitEntry) -> bool:
    return len(entry.event) >= LARGE_BYTES
