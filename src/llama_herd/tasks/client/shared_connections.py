"""The connections to Redis that all readers and calls of an event loop share."""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.connection.cancels import cancel_tasks, no_cancel_lost
from llama_herd.tasks.connection.connect import CLOSED, connect_async, redis_errors, unavailable
from llama_herd.tasks.connection.temporary_errors import is_temporary
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async

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
        own: `Readers` wakes readers.
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


log = logging.getLogger(__name__)

#: Pause before a lost connection is made again.
RETRY_S = 0.2
#: How often Redis is asked whether it is there, and the silence after which the connection counts as lost.
PING_S, SILENT_S = 2.0, 6.0
#: How long the connection is kept after the last stream.
IDLE_S = 10.0
#: Channels of one command.
LOT = 500


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
        self.is_closed = False
        self._heard_s = self._idle_since_s = monotonic()

    @property
    def num_channels(self) -> int:
        return len(self._inboxes)

    async def join(self, name: bytes, inbox: Inbox) -> None:
        """Put the messages of a channel into an inbox. Those before Redis confirms count as missed.

        Raises RedisUnavailable once the hub is closed.
        """
        if self.is_closed:
            raise RedisUnavailable(CLOSED)
        is_first = name not in self._inboxes
        self._inboxes[name].add(inbox)
        if not is_first:  # Redis may have confirmed it already
            inbox.note_missing()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        if is_first:
            try:
                await asyncio.shield(self._send("SUBSCRIBE", [name]))  # others may listen by now
            except BaseException:
                await self.leave(name, inbox)
                raise

    async def leave(self, name: bytes, inbox: Inbox) -> None:
        """Put no more messages of a channel into an inbox."""
        self._inboxes[name].discard(inbox)
        if not self._inboxes[name]:
            del self._inboxes[name]
            self._idle_since_s = monotonic()
            await asyncio.shield(self._send("UNSUBSCRIBE", [name]))

    async def close(self) -> None:
        """Close the connection for good. Readers that still listen get an error."""
        self.is_closed = True
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
                with no_cancel_lost():  # a loop that ends cancels once, and waits for this task
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
                # Redis rejects a whole command if this user may not listen to one of its channels.
                if self._unconfirmed:
                    self._fail(self._unconfirmed.popleft(), unavailable(error, self._url))
                continue
            except ResponseError as error:
                if not is_temporary(error):
                    raise
                reply = None  # to a PING, which a Redis refuses that cannot write to its disk
            self._heard_s = monotonic()
            match reply:
                case [b"message", bytes(name), bytes(message)]:
                    for inbox in self._inboxes.get(name, ()):
                        inbox.put(message)
                case [b"subscribe", bytes(name), _]:
                    self._note_confirmed(name)

    def _note_confirmed(self, name: bytes) -> None:
        """From now on messages of a channel come; earlier ones may be missing."""
        if self._unconfirmed:
            self._unconfirmed[0].discard(name)
            if not self._unconfirmed[0]:
                self._unconfirmed.popleft()
        self._note_missing([name])

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
        self._num_calls = 0
        self.hub = SubscriptionHub(self._redis, url)

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises RedisUnavailable, and what the dialogue raises."""
        self._num_calls += 1
        try:
            with redis_errors(self.url):
                async with self._calls:
                    return await run_dialogue_async(self._redis, dialogue)
        finally:
            if isinstance(dialogue, Coroutine):
                dialogue.close()  # Python warns of a coroutine that nobody began
            self._num_calls -= 1
            if self.hub.is_closed:
                await self._close_if_idle()

    async def close(self) -> None:
        """Close all of them, once the calls under way are over. Streams end with RedisUnavailable."""
        await self.hub.close()
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        """Close the connections for calls unless there is a call: redis-py would connect for it again."""
        if not self._num_calls:
            await self._redis.aclose()
