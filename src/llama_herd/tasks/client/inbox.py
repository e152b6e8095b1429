"""The live messages that wait for one reader: few are kept, since it can read them in the stream."""

import asyncio
from collections import deque

#: Messages and bytes that wait for one reader. Beyond that they are dropped: it reads the stream instead.
MAX_WAITING, MAX_WAITING_BYTES = 64, 65_536


class Inbox:
    """Live messages for one reader. It is also woken without one, to look at the stream or at its place."""

    __slots__ = ("_error", "_has_missed", "_is_woken", "_messages", "_num_bytes", "_waiter")

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._num_bytes = 0
        self._has_missed = False
        self._is_woken = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: bytes) -> None:
        """Keep a message, or note that the reader is too slow for it."""
        if len(self._messages) >= MAX_WAITING or self._num_bytes + len(message) > MAX_WAITING_BYTES:
            self.note_missing()
        elif not self._has_missed:
            self._messages.append(message)
            self._num_bytes += len(message)
            self._wake()

    def note_missing(self) -> None:
        """Note that messages may be missing: what waits here is in the stream, too."""
        self._messages.clear()
        self._num_bytes = 0
        self._has_missed = True
        self._wake()

    def wake_up(self) -> None:
        """Let the reader go on without a message: none is missing."""
        self._is_woken = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Let the reader end with an error."""
        self._error = error
        self._wake()

    async def take(self, wait_s: float) -> list[bytes] | None:
        """Take the messages that have come, once there are some; with a wait_s of 0, those that are there.

        Empty: the reader was woken without one. None: messages may be missing. The inbox has no timer of its
        own: the ReaderMonitor wakes readers.
        """
        if wait_s > 0 and not (self._messages or self._has_missed or self._is_woken or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        is_whole = not self._has_missed and (bool(self._messages) or self._is_woken)
        taken = list(self._messages)
        self._messages.clear()
        self._num_bytes, self._has_missed, self._is_woken = 0, False, False
        return taken if is_whole else None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
