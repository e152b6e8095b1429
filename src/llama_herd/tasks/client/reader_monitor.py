"""One look for all readers of a process that hear nothing.

A channel may lose events, a record may be forgotten without a word, and a place in the queue changes by
itself. If each reader asked for itself, ten thousand that wait would send some thousand commands a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.client.reader import Reader
from llama_herd.tasks.client.waiting import is_withheld
from llama_herd.tasks.ending import end
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Apart, Call, Dialogue

T = TypeVar("T")

#: How often within a silence it is seen who is silent.
ROUNDS = 4
#: Jobs of one command.
LOT = 256
#: How long a refusal is taken for granted, since Redis notes each.
REFUSED_S = 60.0


class ReaderMonitor:
    """Looks after one tenant's readers that have been silent for `silence_s`, some hundred at a time.

    Those that may have missed something are told to read their streams, and those whose jobs wait are told
    their places.
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
        #: What the waiting jobs were known by at the last look at all places; None: unknown.
        self._marks: list[Any] | None = None
        self._places_due_s = 0.0
        self._refused_until_s: dict[str, float] = {}

    @contextmanager
    def watching(self, reader: Reader) -> Iterator[None]:
        """Look after a reader within the block."""
        self._readers.add(reader)
        if reader.is_waiting:
            self._has_newcomers.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())
            self._task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._readers.discard(reader)

    async def close(self) -> None:
        if self._task is not None:
            await end(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End all readers with the error if the lookout's task has failed: they would wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for reader in self._readers:
                reader.inbox.fail(error)

    async def _keep(self) -> None:
        while self._readers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._silence_s / ROUNDS):
                    await self._has_newcomers.wait()
            with suppress(RedisUnavailable):
                await self._tell_places()
            now_s = monotonic()
            for lot in _lots([reader for reader in self._readers if reader.due_s <= now_s]):
                await self._look_after(lot)

    async def _look_after(self, readers: Sequence[Reader]) -> None:
        for reader in readers:
            reader.put_off()
        try:
            stale = await self._run(self._stale(readers))
        except RedisUnavailable:
            stale = readers
        for reader in stale:
            reader.inbox.miss()
        now_s = monotonic() + self._silence_s / 2
        for reader in readers:
            if now_s >= reader.tick_at_s:
                reader.inbox.rouse()

    def _stale(self, readers: Sequence[Reader]) -> Dialogue[Sequence[Reader]]:
        """Pick the readers whose streams are to be read: news, a lost job, or Redis rejects the question."""
        cursors: dict[str, int] = {}
        for reader in readers:
            last = reader.follower.last
            cursors[reader.job_id] = min(last, cursors.get(reader.job_id, last))
        ids, ledger = list(cursors), self._ledger
        news = yield from self._asked("news", [ledger.with_news(cursors)])
        if news is None:
            return readers
        stale = [reader for reader in readers if reader.job_id in news[0] and reader.is_late()]
        # A job that is claimed in between is in the second list.
        states = yield from self._asked("states", [ledger.are_waiting(ids), ledger.are_running(ids)])
        if states is not None:
            there = {job_id for job_id, *each in zip(ids, *states, strict=True) if any(each)}
            stale += [
                reader for reader in readers if reader.has_lost_its_job(is_there=reader.job_id in there)
            ]
        return stale

    async def _tell_places(self) -> None:
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
            marks = await self._run(self._asked("marks", self._ledger.line_marks()))
            has_changed = marks is None or marks != self._marks
        for lot in _lots([reader for reader in waiting if has_changed or not reader.is_placed]):
            for reader, place in zip(lot, await self._run(self._places(lot)), strict=True):
                reader.stand_at(place)
        self._marks = marks

    def _places(self, readers: Sequence[Reader]) -> Dialogue[Sequence[Place | None]]:
        found = yield from self._asked("places", [self._ledger.places([reader.job_id for reader in readers])])
        return [None] * len(readers) if found is None else found[0]

    def _asked(self, what: str, calls: Sequence[Call[Any]]) -> Dialogue[list[Any] | None]:
        """The answers to calls; None if Redis rejects one. A user who lacks a right asks seldom."""
        if monotonic() < self._refused_until_s.get(what, 0.0):
            return None
        answers: list[Any] = yield Apart(calls)
        errors = [answer for answer in answers if isinstance(answer, ResponseError)]
        if any(map(is_withheld, errors)):
            self._refused_until_s[what] = monotonic() + REFUSED_S
        return None if errors else answers


def _lots(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), LOT):
        yield items[start : start + LOT]
