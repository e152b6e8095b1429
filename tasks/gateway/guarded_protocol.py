"""uvicorn's HTTP/1.1, with a limit of time for the head of a request, and a way to cut a connection off.

uvicorn limits the bytes of a head, but not its time: half a request would hold a connection for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 30.0


class GuardedProtocol(H11Protocol):
    """Closes a connection when no whole head of a request has come for `IDLE_S`."""

    idle_s = IDLE_S
    _guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before: Any = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._disarm()

    def on_response_complete(self) -> None:
        self._arm()
        super().on_response_complete()

    def _arm(self) -> None:
        self._disarm()
        self._guard = self.loop.call_later(self.idle_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
