"""Kept: an answer that many ask for at once, found out by one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

#: How long what was seen of the herd is taken for true.
FRESH_S = 1.0


class Kept(Generic[T]):
    """A value found a moment ago: found anew once it is older than FRESH_S, by one caller for all."""

    def __init__(self, find: Callable[[], Awaitable[T]]) -> None:
        self._find = find
        self._asking = asyncio.Lock()
        self._found: T | None = None
        self._found_s = float("-inf")

    async def __call__(self) -> T:
        async with self._asking:
            if self._found is None or monotonic() - self._found_s > FRESH_S:
                self._found = await self._find()
                self._found_s = monotonic()
            return self._found
