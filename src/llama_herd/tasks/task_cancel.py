"""Ending tasks for sure."""

import asyncio
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
