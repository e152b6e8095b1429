"""The connections to Redis that all readers and calls of an event loop share."""

import asyncio
from typing import TypeVar

import redis.asyncio

from llama_herd.tasks.client.subscription_hub import SubscriptionHub
from llama_herd.tasks.connection import connect_async, redis_errors
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async

T = TypeVar("T")

#: Most calls to Redis that are under way at a time. Further ones wait, so that they take no connections.
MAX_CALLS = 64


class SharedConnections:
    """The connections to Redis of one event loop: some for calls, and one for all subscriptions."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._redis: redis.asyncio.Redis = connect_async(url)
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self.hub = SubscriptionHub(self._redis, url)

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises RedisUnavailable, and what the dialogue raises."""
        async with self._calls:
            with redis_errors(self.url):
                return await run_dialogue_async(self._redis, dialogue)

    async def close(self) -> None:
        """Close all of them. Streams under way end with RedisUnavailable."""
        await self.hub.close()
        await self._redis.aclose()
