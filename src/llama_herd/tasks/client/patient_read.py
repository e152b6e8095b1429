"""Reading a stream through an outage of Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.events import Event

#: How long a stream waits for a Redis that is away, and how often it asks.
OUTAGE_S, RETRY_S = 60.0, 0.5


class PatientRead:
    """Reads one job's stream; while Redis is away it finds nothing, after a pause."""

    def __init__(self, read: Callable[[], Awaitable[list[Event]]]) -> None:
        self._read = read
        self._away_s: float | None = None

    async def __call__(self) -> list[Event]:
        """The new events. Raises RedisUnavailable after a long outage, and what the read raises."""
        try:
            events = await self._read()
        except RedisUnavailable:
            self._away_s = self._away_s or monotonic()
            if monotonic() - self._away_s > OUTAGE_S:
                raise
            await asyncio.sleep(RETRY_S)
            return []
        self._away_s = None
        return events
