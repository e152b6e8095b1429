"""All readers of one tenant in one event loop: they share the subscription and the look at what is silent."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from llama_herd.errors import NotPermitted, RedisUnavailable
from llama_herd.tasks.client.follower import SILENCE_S, Follower
from llama_herd.tasks.client.place_watch import is_withheld
from llama_herd.tasks.client.shared_connections import Inbox, SharedConnections
from llama_herd.tasks.connection.cancels import cancel_tasks
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, each, redis_time_ms
from llama_herd.tasks.protocol.events import Event

#: How often a Redis that is away is asked.
AWAY_PAUSE_S = 0.5


@dataclass(eq=False)
class Reader:
    """Goes on when a live message comes, or when the `Readers` wakes it.

    silence_s: without an event for so long it counts as silent. tick_s: it is woken about so often.
    place: the job's place in the queue when it was last looked up, if the reader asks for it.
    """

    follower: Follower
    inbox: Inbox
    silence_s: float
    asks_place: bool
    tick_s: float
    place: Place | None = None
    #: Whether the place was looked up at least once.
    is_place_known: bool = False
    #: Its last event when a check saw a later one in the stream.
    _lagged_at: int | None = field(init=False, default=None)
    _was_there: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.job_id = self.follower.job_id
        self._restart_timers()

    @property
    def is_waiting(self) -> bool:
        """Whether the reader asks for its job's place, and the job has not begun."""
        return self.asks_place and not self.follower.passed_on

    async def events(
        self, read: Callable[[], Awaitable[list[Event]]], outage_s: float, *, is_patient_at_first: bool
    ) -> AsyncGenerator[list[Event]]:
        """The events as they come, up to the end; an empty list each time that there is none.

        read: a read of the stream. Raises what it raises, but RedisUnavailable only after `outage_s`.
        is_patient_at_first: whether also the first read waits so long.
        """
        follower, has_read, away_s = self.follower, is_patient_at_first, inf
        while not follower.has_ended:
            events: list[Event] = []
            if not follower.is_behind:
                heard = await self.inbox.take(follower.wait_s())
                self._restart_timers()
                events = follower.heard(heard)
            if follower.is_behind:
                await self.inbox.take(0)  # what has come until now is in the stream
                try:
                    events += await read()
                    has_read, away_s = True, inf
                except NotPermitted:
                    raise
                except RedisUnavailable:
                    away_s = min(away_s, monotonic())
                    if not has_read or monotonic() - away_s > outage_s:
                        raise
                    await asyncio.sleep(AWAY_PAUSE_S)
            if events or not follower.has_ended:
                yield events

    def note_lag(self) -> bool:
        """Note that the stream has a later event. Returns whether it was so before: the event is not new."""
        has_lagged, self._lagged_at = self._lagged_at == self.follower.last, self.follower.last
        if not has_lagged:
            self.due_s = monotonic()
        return has_lagged

    def note_presence(self, *, is_there: bool) -> bool:
        """Note whether the job waits or runs. Returns whether that is new."""
        was_there, self._was_there = self._was_there, is_there
        return was_there != is_there

    def set_place(self, place: Place | None) -> None:
        """Set the job's place, and wake the reader if it has changed. None: the job does not wait."""
        has_moved, self.place, self.is_place_known = place != self.place, place, True
        if has_moved:
            self.inbox.wake_up()

    def _restart_timers(self) -> None:
        now_s = monotonic()
        self.due_s, self.tick_at_s = now_s + self.silence_s, now_s + self.tick_s


T = TypeVar("T")

#: How often within `silence_s` silent readers are looked for.
ROUNDS = 4
#: Jobs of one command.
LOT = 256
#: How long after a refusal the same is not asked again, since Redis logs each refusal.
REFUSED_S = 60.0


class Readers:
    """Makes the readers of one tenant's jobs, and checks those that have been silent for `silence_s`.

    Readers that may have missed something are made to read their streams, some hundred at a time. Readers
    whose jobs wait get their places in the queue.
    """

    def __init__(self, ledger: Ledger, connections: SharedConnections, silence_s: float = SILENCE_S) -> None:
        self.connections = connections
        self._ledger = ledger
        self._silence_s = silence_s
        self._readers: set[Reader] = set()
        self._has_newcomers = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Marks of the waiting jobs at the last look at all places: equal marks, equal places. None: unknown.
        self._marks: list[Any] | None = None
        self._places_due_s = 0.0
        self._refused_until_s: dict[str, float] = {}

    def reading(
        self, follower: Follower, *, asks_place: bool = False, tick_s: float = inf
    ) -> AbstractAsyncContextManager[Reader]:
        """A reader of a job, for the block. For the arguments see `Reader`."""
        reader = Reader(follower, Inbox(), self._silence_s, asks_place, tick_s)
        return _Reading(self, reader, self._ledger.channel(follower.job_id).encode())

    def add(self, reader: Reader) -> None:
        """Look after a reader."""
        self._readers.add(reader)
        if reader.is_waiting:
            self._has_newcomers.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check_until_idle())
            self._task.add_done_callback(self._ended)

    def discard(self, reader: Reader) -> None:
        self._readers.discard(reader)

    async def close(self) -> None:
        """Check no reader any more. The connections stay open."""
        if self._task is not None:
            await cancel_tasks(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let all readers end with the error if their checks have failed: they would wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for reader in self._readers:
                reader.inbox.fail(error)

    async def _check_until_idle(self) -> None:
        """Check all readers again and again, until there is none."""
        while self._readers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._silence_s / ROUNDS):
                    await self._has_newcomers.wait()
            with suppress(RedisUnavailable):
                await self._update_places()
            now_s = monotonic()
            for lot in _lots([reader for reader in self._readers if reader.due_s <= now_s]):
                await self._check(lot)

    async def _check(self, readers: Sequence[Reader]) -> None:
        """Let those read their streams that may have missed something, and wake those whose tick is due."""
        for reader in readers:
            reader.due_s = monotonic() + self._silence_s  # it counts as silent again only then
        try:
            stale = await self.connections.run(self._stale(readers))
        except RedisUnavailable:
            stale = readers
        for reader in stale:
            reader.inbox.note_missing()
        now_s = monotonic()
        for reader in readers:
            if now_s >= reader.tick_at_s:
                reader.inbox.wake_up()
            else:
                reader.due_s = min(reader.due_s, reader.tick_at_s)

    async def _stale(self, readers: Sequence[Reader]) -> Sequence[Reader]:
        """Readers that must read their streams: there is news, the job is late, new or gone, or unknown."""
        cursors: dict[str, int] = {}
        for reader in readers:
            last = reader.follower.last
            cursors[reader.job_id] = min(last, cursors.get(reader.job_id, last))
        ids, ledger = list(cursors), self._ledger
        news = await self._ask("news", [ledger.jobs_with_news(cursors)])
        if news is None:
            return readers
        stale = [reader for reader in readers if reader.job_id in news[0] and reader.note_lag()]
        stale += [reader for reader in readers if reader.follower.ends_at_s <= monotonic()]
        # A job that is claimed in between is in the second list. One whose worker is silent may be to end.
        calls = [ledger.are_waiting(ids), ledger.lease_ends(ids), redis_time_ms()]
        states = await self._ask("states", calls)
        if states is not None:
            waiting, ends, now_ms = states
            found = zip(ids, waiting, ends, strict=True)
            there = {job_id for job_id, is_waiting, end in found if is_waiting or end > now_ms}
            stale += [reader for reader in readers if reader.note_presence(is_there=reader.job_id in there)]
        return stale

    async def _update_places(self) -> None:
        """Look up the places of newcomers, and all places when the waiting jobs have changed."""
        is_due = monotonic() >= self._places_due_s
        if not (is_due or self._has_newcomers.is_set()):
            return
        self._has_newcomers.clear()
        waiting = [reader for reader in self._readers if reader.is_waiting]
        marks, has_changed = self._marks, False
        if is_due:
            self._places_due_s = monotonic() + self._silence_s
        if is_due and waiting:
            marks = await self.connections.run(self._ask("marks", self._ledger.line_marks()))
            has_changed = marks is None or marks != self._marks
        for lot in _lots([reader for reader in waiting if has_changed or not reader.is_place_known]):
            asked = self._ledger.places([reader.job_id for reader in lot])
            found = await self.connections.run(self._ask("places", [asked]))
            for reader, place in zip(lot, [None] * len(lot) if found is None else found[0], strict=True):
                reader.set_place(place)
        self._marks = marks

    async def _ask(self, what: str, calls: Sequence[RedisCall[Any]]) -> list[Any] | None:
        """The answers to calls; None if Redis rejects one. A user who lacks a right asks seldom."""
        if monotonic() < self._refused_until_s.get(what, 0.0):
            return None
        answers: list[Any] = await each(calls)
        errors = [answer for answer in answers if isinstance(answer, ResponseError)]
        if any(map(is_withheld, errors)):
            self._refused_until_s[what] = monotonic() + REFUSED_S
        return None if errors else answers


class _Reading(AbstractAsyncContextManager[Reader]):
    """No asynchronous generator: a loop that ends closes each of them, also one that is just being closed."""

    def __init__(self, readers: Readers, reader: Reader, channel: bytes) -> None:
        self._readers, self._reader, self._channel = readers, reader, channel
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Reader:
        inbox = self._reader.inbox
        await self._readers.connections.hub.join(self._channel, inbox)
        self._readers.add(self._reader)
        if (left_s := self._reader.follower.left_s) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left_s + 0.001, inbox.note_missing)  # not too early
        return self._reader

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._readers.discard(self._reader)
        await self._readers.connections.hub.leave(self._channel, self._reader.inbox)


def _lots(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), LOT):
        yield items[start : start + LOT]
