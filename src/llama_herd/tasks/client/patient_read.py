"""Reading a stream through an outage of Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from llama_herd.errors import NotPermitted, RedisUnavailable
from llama_herd.tasks.protocol.events import Event

#: How often a Redis that is away is asked.
RETRY_S = 0.5


class PatientRead:
    """A read of one job's stream; while Redis is away it pauses, and returns no events."""

    def __init__(
        self, read: Callable[[], Awaitable[list[Event]]], outage_s: float, *, is_patient_at_first: bool
    ) -> None:
        """is_patient_at_first: whether also the first read waits for `outage_s`."""
        self._read = read
        self._outage_s = outage_s
        self._has_read = is_patient_at_first
        self._away_s: float | None = None

    async def __call__(self) -> list[Event]:
        """The new events. Raises RedisUnavailable after a long outage, and what the read raises."""
        try:
            events = await self._read()
        except NotPermitted:
            raise
        except RedisUnavailable:
            self._away_s = self._away_s or monotonic()
            if not self._has_read or monotonic() - self._away_s > self._outage_s:
                raise
            await asyncio.sleep(RETRY_S)
            return []
        self._away_s, self._has_read = None, True
        return events
