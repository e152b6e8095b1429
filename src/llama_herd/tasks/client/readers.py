"""All readers of one tenant in one event loop: they share the subscription and the monitor."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf

from llama_herd.tasks.client.follower import SILENCE_S, Follower
from llama_herd.tasks.client.inbox import Inbox
from llama_herd.tasks.client.reader import Reader
from llama_herd.tasks.client.reader_monitor import ReaderMonitor
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.ledger.ledger import Ledger


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
