"""The batch for asyncio; `llama_herd.tasks.client.batch.batch` method by method."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Sequence
from time import monotonic
from typing import Any, TypeVar

import redis.asyncio

from llama_herd.tasks.client.batch.row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.connection import redis_errors
from llama_herd.tasks.ledger.redis_call import Call, run_many_async

T = TypeVar("T")


class AsyncBatch:
    """The items of a batch, without blocking the event loop. Made by `AsyncClient.batch`."""

    def __init__(self, connection: redis.asyncio.Redis, url: str, window: BatchWindow) -> None:
        self.window = window
        self._connection = connection
        self._url = url
        self._items: deque[BatchItem] = deque()

    async def poll(self) -> list[BatchItem]:
        """All items of one look, after a short pause; often none."""
        await asyncio.sleep(self.window.pause_s)
        with redis_errors(self._url):
            return await self._exchange(self.window.round(monotonic()))

    async def cancel(self) -> None:
        """End all that is under way."""
        with redis_errors(self._url):
            await self._exchange(self.window.cancel())

    def __aiter__(self) -> AsyncIterator[BatchItem]:
        return self

    async def __anext__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopAsyncIteration
            self._items.extend(await self.poll())
        return self._items.popleft()

    async def _exchange(self, dialogue: Generator[Sequence[Call[Any]], list[Any], T]) -> T:
        try:
            calls = next(dialogue)
            while True:
                calls = dialogue.send(await run_many_async(self._connection, calls))
        except StopIteration as end:
            outcome: T = end.value
            return outcome
