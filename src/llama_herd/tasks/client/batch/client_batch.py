"""Many jobs, with a limited number under way at a time, and one item for each: in threads and in asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from time import monotonic, sleep

import redis
import redis.asyncio

from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.connection.connect import redis_errors
from llama_herd.tasks.ledger.redis_call import run_dialogue, run_dialogue_async


class ClientBatch:
    """The items of a batch, as its jobs end or in order. Made by `Client.batch`.

    Asking for the next item deletes the jobs of those before it from Redis. After RedisUnavailable nothing is
    lost: ask again.
    """

    def __init__(self, connection: redis.Redis, url: str, window: BatchWindow) -> None:
        self.window = window
        self._connection = connection
        self._url = url
        self._items: deque[BatchItem] = deque()

    def poll(self, *, forgets: bool = True) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none. Raises RedisUnavailable.

        forgets: whether the items of earlier rounds are safe, so that Redis may forget their jobs.
        """
        sleep(self.window.pause_s)
        with redis_errors(self._url):
            return run_dialogue(self._connection, self.window.round(monotonic(), forgets=forgets))

    def cancel(self) -> None:
        """End all jobs under way; their items say so. Raises RedisUnavailable."""
        with redis_errors(self._url):
            run_dialogue(self._connection, self.window.cancel())

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

    def __init__(self, connection: redis.asyncio.Redis, url: str, window: BatchWindow) -> None:
        self.window = window
        self._connection = connection
        self._url = url
        self._items: deque[BatchItem] = deque()

    async def poll(self) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none."""
        await asyncio.sleep(self.window.pause_s)
        with redis_errors(self._url):
            return await run_dialogue_async(self._connection, self.window.round(monotonic()))

    async def cancel(self) -> None:
        """End all jobs under way."""
        with redis_errors(self._url):
            await run_dialogue_async(self._connection, self.window.cancel())

    def __aiter__(self) -> AsyncIterator[BatchItem]:
        return self

    async def __anext__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopAsyncIteration
            self._items.extend(await self.poll())
        return self._items.popleft()
