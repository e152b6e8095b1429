"""Many jobs, with a limited number under way at a time, and one item for each: in threads and in asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from time import monotonic, sleep
from typing import Any

from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.ledger.redis_call import Dialogue


class ClientBatch:
    """The items of a batch, as its jobs end or in order. Made by `Client.batch`.

    Asking for the next item deletes the jobs of those before it from Redis. After RedisUnavailable nothing is
    lost: ask again.
    """

    def __init__(self, run: Callable[[Dialogue[Any]], Any], window: BatchWindow) -> None:
        """run: runs a dialogue, and raises RedisUnavailable."""
        self.window = window
        self._run = run
        self._items: deque[BatchItem] = deque()

    def poll(self, *, forgets: bool = True) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none. Raises RedisUnavailable.

        forgets: whether the items of earlier rounds are safe, so that Redis may forget their jobs.
        """
        sleep(self.window.pause_s)
        items: list[BatchItem] = self._run(self.window.round(monotonic(), forgets=forgets))
        return items

    def cancel(self) -> None:
        """End all jobs under way; their items say so. Raises RedisUnavailable."""
        self._run(self.window.cancel())

    def __iter__(self) -> Iterator[BatchItem]:
        return self

    def __next__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopIteration
            self._items.extend(self.poll())
        return self._items.popleft()


class AsyncBatch:
    """The items of a batch, without blocking the event loop. Made by `AsyncClient.batch`."""

    def __init__(self, run: Callable[[Dialogue[Any]], Awaitable[Any]], window: BatchWindow) -> None:
        self.window = window
        self._run = run
        self._items: deque[BatchItem] = deque()

    async def poll(self) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none."""
        await asyncio.sleep(self.window.pause_s)
        items: list[BatchItem] = await self._run(self.window.round(monotonic()))
        return items

    async def cancel(self) -> None:
        """End all jobs under way."""
        await self._run(self.window.cancel())

    def __aiter__(self) -> AsyncIterator[BatchItem]:
        return self

    async def __anext__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopAsyncIteration
            self._items.extend(await self.poll())
        return self._items.popleft()
