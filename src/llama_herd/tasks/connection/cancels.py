"""Tasks of asyncio that are cancelled, or must not be, whatever the libraries below do with a cancel."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Between two cancels of a task.
PATIENCE_S = 0.05


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended. What they raise is dropped.

    Once is not enough: before Python 3.12 asyncio.wait_for, which redis-py uses, may lose a cancel.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=PATIENCE_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()


@contextmanager
def no_cancel_lost() -> Iterator[None]:
    """Raise CancelledError behind the block if the task was cancelled in it, and the block went on.

    Before Python 3.12 asyncio.wait_for, which redis-py uses, may lose a cancel: its task would not end.
    """
    task = asyncio.current_task()
    num = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > num:
            raise asyncio.CancelledError


async def take_cancel() -> None:
    """Raise CancelledError if the task was cancelled while it ran, as by Ctrl-C, and was not told yet.

    To be awaited before `no_cancel_lost`, which would take that cancel for an old one.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also if the task is cancelled meanwhile; CancelledError comes behind it."""
    task = asyncio.create_task(work)
    with no_cancel_lost():
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        await task
