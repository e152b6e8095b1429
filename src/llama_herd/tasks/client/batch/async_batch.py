"""The batch for asyncio, with the same methods as `llama_herd.tasks.client.batch.client_batch`."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic

import redis.asyncio

from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.connection.connect import redis_errors
from llama_herd.tasks.ledger.redis_call import run_dialogue_async


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
