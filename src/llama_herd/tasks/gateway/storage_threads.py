"""Calls of the storage, in threads of their own: one that gets no answer holds up nothing but its like."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(32, "storage")


async def in_thread(act: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What a call returns that may wait for the storage."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(act, *args, **options))


@asynccontextmanager
async def in_threads(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A block of the storage's, which is entered and left in other threads. It does not hear of errors."""
    found = await in_thread(block.__enter__)
    try:
        yield found
    finally:
        await in_thread(block.__exit__, None, None, None)
