"""The connections to Redis that all tenants of a gateway share."""

import asyncio
from typing import TypeVar

import redis.asyncio

from llama_herd.tasks.connection import connect_async, redis_errors
from llama_herd.tasks.gateway.hub import Hub
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async

T = TypeVar("T")

#: Most calls to Redis that are under way at a time. More wait here, not as connections of Redis.
MAX_CALLS = 64


class Line:
    """The connections to Redis: some for calls, and one for all subscriptions."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.url = settings.redis_url
        self._redis: redis.asyncio.Redis = connect_async(self.url)
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self.hub = Hub(self._redis)

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises RedisUnavailable, and what the dialogue raises."""
        async with self._calls:
            with redis_errors(self.url):
                return await run_dialogue_async(self._redis, dialogue)

    async def close(self) -> None:
        await self._redis.aclose()
