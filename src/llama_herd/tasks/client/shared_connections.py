"""The connections to Redis that all readers and calls of an event loop share."""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.client.inbox import Inbox
from llama_herd.tasks.connection.connect import cancel_tasks, connect_async, redis_errors, unavailable
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async

log = logging.getLogger(__name__)

#: Pause before a lost connection is made again.
RETRY_S = 0.2
#: How often Redis is asked whether it is there, and the silence after which the connection counts as lost.
PING_S, SILENT_S = 2.0, 6.0
#: How long the connection is kept after the last stream.
IDLE_S = 10.0
#: Channels of one command.
LOT = 500

CLOSED = "the connections to Redis were closed, and with them this stream"


class SubscriptionHub:
    """One connection that subscribes to channels, and puts each message into the inboxes of its channel.

    It connects with the first inbox, and again after each loss, for as long as there is one.
    """

    def __init__(self, connection: redis.asyncio.Redis, url: str) -> None:
        """url: where `connection` leads, for errors."""
        self._pool: Any = connection.connection_pool
        self._url = url
        self._inboxes: dict[bytes, set[Inbox]] = defaultdict(set)
        #: Channels of each SUBSCRIBE that Redis has not answered whole, in the order of the commands.
        self._unconfirmed: deque[set[bytes]] = deque()
        self._connection: Any = None
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._heard_s = self._idle_since_s = monotonic()

    @property
    def num_channels(self) -> int:
        return len(self._inboxes)

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Inbox]:
        """An inbox for a channel, for the block. What is published before Redis confirms counts as missed."""
        name, inbox = channel.encode(), Inbox()
        is_first = name not in self._inboxes
        self._inboxes[name].add(inbox)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        try:
            if is_first:
                await asyncio.shield(self._send("SUBSCRIBE", [name]))  # others may listen by now
            yield inbox
        finally:
            self._inboxes[name].discard(inbox)
            if not self._inboxes[name]:
                del self._inboxes[name]
                self._idle_since_s = monotonic()
                await asyncio.shield(self._send("UNSUBSCRIBE", [name]))

    async def close(self) -> None:
        """Close the connection. Readers that still listen get an error."""
        if self._task is not None:
            await cancel_tasks(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let all readers end with the error of the task, or because it was closed."""
        error = RedisUnavailable(CLOSED) if task.cancelled() else task.exception()
        if error is not None:
            self._fail(self._inboxes, error)

    async def _run(self) -> None:
        """Receive messages, connecting as often as needed, until nobody has listened for IDLE_S."""
        is_logged = False
        while self._inboxes or monotonic() - self._idle_since_s < IDLE_S:
            try:
                await self._connect()
                is_logged = False
                async with asyncio.TaskGroup() as tasks:
                    receiving = tasks.create_task(self._receive())
                    await self._ping_until_idle()
                    receiving.cancel()
            except* (RedisError, OSError) as errors:
                if not is_logged:
                    log.warning("the subscription is lost: %s", type(errors.exceptions[0]).__name__)
                is_logged = True
            finally:
                connection, self._connection = self._connection, None
                self._unconfirmed.clear()
                if connection is not None:
                    await connection.disconnect(nowait=True)
            self._note_missing(name for name in self._inboxes)
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        """Make a connection, and subscribe to all channels that somebody listens to."""
        connection = self._pool.make_connection()
        await connection.connect()
        connection.socket_timeout = None  # nothing to hear is no error
        self._heard_s = monotonic()
        self._connection = connection
        names = list(self._inboxes)
        for start in range(0, len(names), LOT):
            await self._send("SUBSCRIBE", names[start : start + LOT])

    async def _receive(self) -> None:
        """Put messages into inboxes as they come, and note which subscriptions Redis confirms."""
        while True:
            try:
                reply = await self._connection.read_response(disconnect_on_error=False, push_request=True)
            except NoPermissionError as error:
                self._refuse(error)
                continue
            self._heard_s = monotonic()
            match reply:
                case [b"message", bytes(name), bytes(message)]:
                    for inbox in self._inboxes.get(name, ()):
                        inbox.put(message)
                case [b"subscribe", bytes(name), _]:
                    self._confirm(name)

    async def _ping_until_idle(self) -> None:
        """Ping, to notice a Redis that is gone without a word; return once nobody has listened for IDLE_S."""
        while self._inboxes or monotonic() - self._idle_since_s < IDLE_S:
            await asyncio.sleep(PING_S)
            if monotonic() - self._heard_s > SILENT_S:
                raise redis.exceptions.ConnectionError("Redis has fallen silent")
            await self._send("PING", [])

    async def _send(self, command: str, names: list[bytes]) -> None:
        """Send, unless there is no connection: a new one subscribes to all channels there are."""
        async with self._sending:
            connection = self._connection
            if connection is not None and connection.is_connected:
                if command == "SUBSCRIBE":
                    self._unconfirmed.append(set(names))
                with suppress(RedisError, OSError):  # the receiver meets it, too, or nothing is heard
                    async with asyncio.timeout(SILENT_S):
                        await connection.send_command(command, *names, check_health=False)

    def _confirm(self, name: bytes) -> None:
        """Note that Redis has confirmed a channel: from now on messages come, earlier ones may be missing."""
        if self._unconfirmed:
            self._unconfirmed[0].discard(name)
            if not self._unconfirmed[0]:
                self._unconfirmed.popleft()
        self._note_missing([name])

    def _refuse(self, error: RedisError) -> None:
        """Redis rejects a whole command if this user may not listen to one of its channels."""
        if self._unconfirmed:
            self._fail(self._unconfirmed.popleft(), unavailable(error, self._url))

    def _fail(self, names: Iterable[bytes], error: BaseException) -> None:
        """Let all readers of these channels end with an error."""
        for name in names:
            for inbox in self._inboxes.get(name, ()):
                inbox.fail(error)

    def _note_missing(self, names: Iterable[bytes]) -> None:
        """Tell all readers of these channels that messages may be missing."""
        for name in list(names):
            for inbox in self._inboxes.get(name, ()):
                inbox.note_missing()


T = TypeVar("T")

#: Most calls to Redis that are under way at a time. Further ones wait, so that they take no connections.
MAX_CALLS = 64


class SharedConnections:
    """The connections to Redis of one event loop: some for calls, and one for all subscriptions."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._redis: redis.asyncio.Redis = connect_async(url)
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self.hub = SubscriptionHub(self._redis, url)

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises RedisUnavailable, and what the dialogue raises."""
        async with self._calls:
            with redis_errors(self.url):
                return await run_dialogue_async(self._redis, dialogue)

    async def close(self) -> None:
        """Close all of them. Streams under way end with RedisUnavailable."""
        await self.hub.close()
        await self._redis.aclose()
