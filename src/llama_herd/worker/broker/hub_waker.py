"""What ends the poll of Celery's hub, when another thread has something for it to run."""

import socket
from contextlib import suppress
from typing import Any, Self


class HubWaker:
    """Wakes the hub of kombu before 5.7, which would see such a thing after its poll, up to a second later.

    Until then no message is acknowledged, and a full worker takes no other.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @classmethod
    def of(cls, hub: Any) -> Self | None:
        """One that this hub listens to until it is reset; None for a hub that wakes itself."""
        if hasattr(hub, "_waker"):
            return None
        waker = cls()
        hub.add_reader(waker._reader, waker._drain)
        return waker

    def wake(self) -> None:
        """End the hub's poll, or its next one. Any thread may call."""
        with suppress(BlockingIOError):  # the hub has enough to read
            self._writer.send(b"\0")

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
