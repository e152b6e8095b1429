"""One subscription for all streams of a process.

Redis keeps a connection for each subscriber, and a thousand streams must not mean a thousand of these. Live
messages are only a hint: a reader that is slow, or that missed some, reads on in the job's stored stream. So
nothing here is kept for anybody beyond a few messages, and a lost connection costs nobody an event.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

#: Messages and bytes that wait for one reader. Beyond that they are dropped: it reads the stream instead.
MAX_WAITING, MAX_WAITING_BYTES = 64, 65_536
#: Pause before a lost connection is made again.
RETRY_S = 0.2
#: How often Redis is asked whether it is there, and the silence after which the connection counts as lost.
PING_S, SILENT_S = 2.0, 6.0
#: Channels of one command.
LOT = 500


class Inbox:
    """Live messages for one reader."""

    __slots__ = ("_has_missed", "_messages", "_num_bytes", "_wake")

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._num_bytes = 0
        self._has_missed = False
        self._wake = asyncio.Event()

    def put(self, message: bytes) -> None:
        """Keep a message, or note that the reader is too slow for it."""
        if len(self._messages) >= MAX_WAITING or self._num_bytes + len(message) > MAX_WAITING_BYTES:
            self.miss()
        elif not self._has_missed:
            self._messages.append(message)
            self._num_bytes += len(message)
            self._wake.set()

    def miss(self) -> None:
        """Note that messages may be missing: what waits here is in the stream, too."""
        self._messages.clear()
        self._num_bytes = 0
        self._has_missed = True
        self._wake.set()

    async def take(self, timeout_s: float) -> list[bytes] | None:
        """What waits. None if messages may be missing, or when none has come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()
        taken, self._num_bytes = list(self._messages), 0
        self._messages.clear()
        if self._has_missed or not taken:
            self._has_missed = False
            return None
        return taken


class Hub:
    """Hands what is published on a channel to all who listen to it; `run` does so until it is cancelled."""

    def __init__(self, connection: redis.asyncio.Redis) -> None:
        self._pool: Any = connection.connection_pool
        self._inboxes: dict[bytes, set[Inbox]] = defaultdict(set)
        self._connection: Any = None
        self._sending = asyncio.Lock()
        self._heard_s = monotonic()

    @property
    def num_channels(self) -> int:
        return len(self._inboxes)

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Inbox]:
        """An inbox for a channel. Once the subscription holds, it is told that it has missed something."""
        name, inbox = channel.encode(), Inbox()
        is_first = name not in self._inboxes
        self._inboxes[name].add(inbox)
        try:
            if is_first:
                await self._send("SUBSCRIBE", [name])
            yield inbox
        finally:
            self._inboxes[name].discard(inbox)
            if not self._inboxes[name]:
                del self._inboxes[name]
                await self._send("UNSUBSCRIBE", [name])

    async def run(self) -> None:
        """Receive, and connect again for as long as it takes."""
        while True:
            try:
                await self._connect()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._ping())
                    tasks.create_task(self._receive())
            except* (RedisError, OSError) as error:
                log.warning("the subscription is lost: %s", type(error.exceptions[0]).__name__)
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    await connection.disconnect(nowait=True)
            self._miss(name for name in self._inboxes)
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        connection = self._pool.make_connection()
        await connection.connect()
        connection.socket_timeout = None  # nothing to hear is no error
        self._heard_s = monotonic()
        self._connection = connection
        names = list(self._inboxes)
        for start in range(0, len(names), LOT):
            await self._send("SUBSCRIBE", names[start : start + LOT])

    async def _receive(self) -> None:
        while True:
            reply = await self._connection.read_response(disconnect_on_error=False, push_request=True)
            self._heard_s = monotonic()
            match reply:
                case [b"message", bytes(name), bytes(message)]:
                    for inbox in self._inboxes.get(name, ()):
                        inbox.put(message)
                case [b"subscribe", bytes(name), _]:
                    self._miss([name])

    async def _ping(self) -> None:
        """Notice a Redis that has gone without a word."""
        while True:
            await asyncio.sleep(PING_S)
            if monotonic() - self._heard_s > SILENT_S:
                raise redis.exceptions.ConnectionError("Redis has fallen silent")
            await self._send("PING", [])

    async def _send(self, command: str, names: list[bytes]) -> None:
        """Send, unless there is no connection: a new one subscribes to all channels there are."""
        async with self._sending:
            connection = self._connection
            if connection is not None and connection.is_connected:
                with suppress(RedisError, OSError):  # the receiver meets it, too
                    await connection.send_command(command, *names, check_health=False)

    def _miss(self, names: Iterable[bytes]) -> None:
        for name in list(names):
            for inbox in self._inboxes.get(name, ()):
                inbox.miss()
