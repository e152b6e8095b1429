"""A value that many requests ask for at once, looked up by one of them for all."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

#: How long a value that was looked up counts as true.
FRESH_S = 1.0


class CachedValue(Generic[T]):
    """A value that is looked up again once it is older than FRESH_S. Concurrent callers share one lookup."""

    def __init__(self, look_up: Callable[[], Awaitable[T]]) -> None:
        self._look_up = look_up
        self._looking_up = asyncio.Lock()
        self._value: T | None = None
        self._looked_up_s = float("-inf")

    async def __call__(self) -> T:
        async with self._looking_up:
            if self._value is None or monotonic() - self._looked_up_s > FRESH_S:
                self._value = await self._look_up()
                self._looked_up_s = monotonic()
            return self._value
