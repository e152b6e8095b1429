"""All readers of one tenant in one event loop: they share the subscription and the monitor."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.client.follower import SILENCE_S, Follower
from llama_herd.tasks.client.inbox import Inbox
from llama_herd.tasks.client.place_watch import is_withheld
from llama_herd.tasks.client.reader import Reader
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.connection.connect import cancel_tasks
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Dialogue, IndependentCalls, RedisCall

T = TypeVar("T")

#: How often within `silence_s` silent readers are looked for.
ROUNDS = 4
#: Jobs of one command.
LOT = 256
#: How long after a refusal the same is not asked again, since Redis logs each refusal.
REFUSED_S = 60.0


class ReaderMonitor:
    """Checks one tenant's readers that have been silent for `silence_s`, some hundred at a time.

    Readers that may have missed something are made to read their streams. Readers whose jobs wait get their
    places in the queue.
    """

    def __init__(
        self, ledger: Ledger, run: Callable[[Dialogue[Any]], Awaitable[Any]], silence_s: float
    ) -> None:
        """run: runs a dialogue, and raises RedisUnavailable."""
        self._ledger = ledger
        self._run = run
        self._silence_s = silence_s
        self._readers: set[Reader] = set()
        self._has_newcomers = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Marks of the waiting jobs at the last look at all places: equal marks, equal places. None: unknown.
        self._marks: list[Any] | None = None
        self._places_due_s = 0.0
        self._refused_until_s: dict[str, float] = {}

    @contextmanager
    def watching(self, reader: Reader) -> Iterator[None]:
        """Check a reader from time to time within the block."""
        self._readers.add(reader)
        if reader.is_waiting:
            self._has_newcomers.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check_until_idle())
            self._task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._readers.discard(reader)

    async def close(self) -> None:
        """Check no reader any more."""
        if self._task is not None:
            await cancel_tasks(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let all readers end with the error if the monitor's task has failed: they would wait for ever."""
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
            reader.restart_silence()
        try:
            stale = await self._run(self._stale(readers))
        except RedisUnavailable:
            stale = readers
        for reader in stale:
            reader.inbox.note_missing()
        now_s = monotonic() + self._silence_s / 2
        for reader in readers:
            if now_s >= reader.tick_at_s:
                reader.inbox.wake_up()

    def _stale(self, readers: Sequence[Reader]) -> Dialogue[Sequence[Reader]]:
        """Readers that must read their streams: there is news, the job is gone, or Redis refuses to say."""
        cursors: dict[str, int] = {}
        for reader in readers:
            last = reader.follower.last
            cursors[reader.job_id] = min(last, cursors.get(reader.job_id, last))
        ids, ledger = list(cursors), self._ledger
        news = yield from self._ask("news", [ledger.jobs_with_news(cursors)])
        if news is None:
            return readers
        stale = [reader for reader in readers if reader.job_id in news[0] and reader.note_lag()]
        # A job that is claimed in between is in the second list.
        states = yield from self._ask("states", [ledger.are_waiting(ids), ledger.are_running(ids)])
        if states is not None:
            there = {job_id for job_id, *each in zip(ids, *states, strict=True) if any(each)}
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
            marks = await self._run(self._ask("marks", self._ledger.line_marks()))
            has_changed = marks is None or marks != self._marks
        for lot in _lots([reader for reader in waiting if has_changed or not reader.is_place_known]):
            for reader, place in zip(lot, await self._run(self._look_up_places(lot)), strict=True):
                reader.set_place(place)
        self._marks = marks

    def _look_up_places(self, readers: Sequence[Reader]) -> Dialogue[Sequence[Place | None]]:
        found = yield from self._ask("places", [self._ledger.places([reader.job_id for reader in readers])])
        return [None] * len(readers) if found is None else found[0]

    def _ask(self, what: str, calls: Sequence[RedisCall[Any]]) -> Dialogue[list[Any] | None]:
        """The answers to calls; None if Redis rejects one. A user who lacks a right asks seldom."""
        if monotonic() < self._refused_until_s.get(what, 0.0):
            return None
        answers: list[Any] = yield IndependentCalls(calls)
        errors = [answer for answer in answers if isinstance(answer, ResponseError)]
        if any(map(is_withheld, errors)):
            self._refused_until_s[what] = monotonic() + REFUSED_S
        return None if errors else answers


def _lots(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), LOT):
        yield items[start : start + LOT]


class Readers:
    """Makes the readers of one tenant's jobs."""

    def __init__(self, ledger: Ledger, connections: SharedConnections, silence_s: float = SILENCE_S) -> None:
        """silence_s: after this long without an event the monitor checks whether one was missed."""
        self.connections = connections
        self._ledger = ledger
        self._silence_s = silence_s
        self._monitor = ReaderMonitor(ledger, connections.run, silence_s)

    @asynccontextmanager
    async def reading(
        self, follower: Follower, *, asks_place: bool = False, tick_s: float = inf
    ) -> AsyncIterator[Reader]:
        """A reader of a job, for the block. For the arguments see `Reader`."""
        async with self.connections.hub.listening(self._ledger.channel(follower.job_id)) as inbox:
            reader = Reader(follower, inbox, self._silence_s, asks_place=asks_place, tick_s=tick_s)
            with self._monitor.watching(reader), _woken_in_time(follower, inbox):
                yield reader

    async def close(self) -> None:
        """Stop the monitor. The connections stay open."""
        await self._monitor.close()


@contextmanager
def _woken_in_time(follower: Follower, inbox: Inbox) -> Iterator[None]:
    """Wake a reader at its time limit."""
    if follower.left_s is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(
        follower.left_s + 0.001, inbox.note_missing
    )  # not too early
    try:
        yield
    finally:
        timer.cancel()
