"""What stands between a broken message and the worker's life.

A stock worker exits on a message that it cannot read, and some such messages are put back and end the next
worker too. Here they go to the dead letters, with the reason.
"""

import socket
from collections.abc import Callable, Mapping, Set as AbstractSet
from contextlib import suppress
from functools import partial
from time import monotonic, time
from typing import Any

import structlog
from celery.worker import consumer
from celery.worker.state import reserved_requests
from kombu.message import Message
from kombu.transport import redis as redis_transport, virtual
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import OutOfMemoryError, RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.dead_letters import DeadLetters
from llama_herd.tasks.job import is_job_id
from llama_herd.tasks.message import TASK_NAME
from llama_herd.worker import boot
from llama_herd.worker.turns import Turns

log = structlog.get_logger(__name__)

#: What reading a hostile message can raise, besides the errors of the connection itself.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError)


#: Pauses between tries of a Redis that is away, in Celery's words; its own grow to half a minute.
RECONNECT = {"interval_start": 0.2, "interval_step": 0.3, "interval_max": 2.0}


class TooLong(ValueError):
    """A message is longer than HERD_MAX_MESSAGE_BYTES."""


class RawMessage(virtual.Message):  # type: ignore[misc]
    """A message of the queue, without what its sender could do by its properties and headers.

    It is put back to the queue that it came from, not to whatever list its sender names, and nobody's events
    show arguments, which hold prompts.
    """

    def __init__(self, payload: Any, channel: "Channel", **options: Any) -> None:
        """A message of remote control comes by no queue, and goes back to none."""
        properties = payload["properties"]
        place = {"exchange": "", "routing_key": channel.queue_read}
        properties["delivery_info"] = {**properties["delivery_info"], **place}
        payload["headers"] = {**payload["headers"], "argsrepr": "()", "kwargsrepr": "{}"}
        super().__init__(payload, channel, **options)


class QoS(redis_transport.QoS):  # type: ignore[misc]
    """Notes which messages are held; those that this worker holds are not taken for lost, however long."""

    def can_consume(self) -> bool:
        return not self.channel.is_closed and bool(super().can_consume())

    def append(self, message: Message, delivery_tag: str) -> None:
        try:
            super().append(message, delivery_tag)
        except OutOfMemoryError:
            # A Redis that is full gives messages, but takes no note of them. If this one is lost with the
            # worker, the ledger's sweep pushes it again.
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.hang_up()

    def restore_visible(self, *args: Any, **options: Any) -> None:
        held = {tag: time() for tag in self._delivered if tag not in self._dirty}
        if held:
            # Not by the channel's client, whose connection waits for a message. No tag that is acked by now.
            with suppress(OutOfMemoryError), self.channel.conn_or_acquire() as client:
                client.zadd(self.unacked_index_key, held, xx=True)
        super().restore_visible(*args, **options)


class Channel(redis_transport.Channel):  # type: ignore[misc]
    """Reads the queues; an item that is no message is put aside instead of ending the loop."""

    QoS = QoS
    Message = RawMessage

    #: Answers to "is there a message?", also those that there is none.
    num_polls = 0
    #: Queues that this worker is to ask for no more messages, although there would be room for some.
    closed_queues: AbstractSet[str] = frozenset()
    _last_reply: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._turns = Turns()
        super().__init__(*args, **options)

    @property
    def has_room(self) -> bool:
        """Whether this worker wants messages."""
        return bool(self.qos.can_consume())

    @property
    def open_queues(self) -> list[str]:
        return [queue for queue in self.active_queues if queue not in self.closed_queues]

    @property
    def is_closed(self) -> bool:
        """Whether there are queues, and all are closed; a channel of remote control has none."""
        return bool(self.active_queues) and not self.open_queues

    @property
    def queue_read(self) -> str:
        """The queue of the last message, whichever of its lists that came from; empty before the first."""
        return str(bytes_to_str(self._last_reply[0]).partition(self.sep)[0]) if self._last_reply else ""

    @property
    def message_read(self) -> bytes:
        """The last message as it came."""
        raw: bytes = self._last_reply[1]
        return raw

    def close(self) -> None:
        try:
            super().close()
        except RedisError:
            if not self.closed:
                super().close()  # kombu stops half way when the connection breaks at a message
            raise
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """Keep no connection once closed: kombu opens one to put messages back, and to ack late ones."""
        if self.closed and self._pool is not None:
            self._pool.disconnect()

    def _get_client(self) -> type[Redis]:
        """kombu's client class, but it leaves what it read last with the channel."""
        channel, client = self, super()._get_client()

        class Client(client):  # type: ignore[misc, valid-type]
            def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
                reply = super().parse_response(connection, command_name, **options)
                if command_name == "BRPOP":
                    channel._note(reply)
                return reply

        return Client

    def _note(self, reply: Any) -> None:
        """Count an answer, and keep the message that may be in it. Raises TooLong before anybody reads it."""
        self.num_polls += 1
        if reply is not None:
            self._last_reply = reply
            self._turns.note(self.queue_read)
            if len(reply[1]) > boot.settings().max_message_bytes:
                raise TooLong

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for a message as kombu does, but in an order of our own."""
        lists = self._turns.lists(self.open_queues, reserved_requests)
        if lists:
            self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            self._in_poll.send_command("BRPOP", *lists, timeout or self.brpop_timeout)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except RedisError:
            raise
        except UNREADABLE as error:
            put_aside(self, type(error).__name__)
            raise redis_transport.Empty from None


class Transport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with the guarded channel."""

    Channel = Channel


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Celery's consumer; a message that it cannot handle is put aside, and never shown in a log."""

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **options: Any) -> None:
        """Without the talk among workers, which reaches all of them in a Redis, whosoever they are."""
        quiet = dict.fromkeys(("without_mingle", "without_gossip"), True)
        quiet["without_heartbeat"] = not options.get("task_events")
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **options)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, also again, within two seconds of Redis being back."""
        conn.ensure_connection = partial(conn.ensure_connection, **RECONNECT)
        return super().ensure_connected(conn)

    def update_strategies(self) -> None:
        """Have each message run by the app of the tenant from whose queue it comes."""
        super().update_strategies()
        apps = {queue: boot.app_of(own) for queue, own in boot.settings().by_queue.items()}
        if set(apps.values()) == {self.app}:
            return
        for name in self.app.tasks:
            by_queue = {
                queue: app.tasks[name].start_strategy(app, self)
                for queue, app in apps.items()
                if name in app.tasks  # the process's first may have some that it does not share
            }
            self.strategies[name] = partial(_strategy_of_queue, by_queue)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Message], Any]:
        """Called anew for each connection."""
        handle = super().create_task_handler(*args, **options)
        self.pool.watch(self.task_consumer.channel)

        def guarded(message: Message) -> Any:
            try:
                _check_headers(message.headers)
                return handle(message)
            except RedisError:
                raise
            except UNREADABLE as error:
                return self._refuse(message, type(error).__name__)

        return guarded

    def on_unknown_message(self, body: Any, message: Message) -> None:
        self._refuse(message, "no task is named")

    def on_unknown_task(self, body: Any, message: Message, exc: BaseException) -> None:
        self._refuse(message, "unknown task")

    def on_invalid_task(self, body: Any, message: Message, exc: BaseException) -> None:
        self._refuse(message, type(exc).__name__)

    def on_decode_error(self, message: Message, exc: BaseException) -> None:
        self._refuse(message, type(exc).__name__)

    def _refuse(self, message: Message, reason: str) -> None:
        put_aside(message.channel, reason)
        message.reject_log_error(log, self.connection_errors)


def _strategy_of_queue(by_queue: Mapping[str, Callable[..., Any]], message: Message, *args: Any) -> Any:
    return by_queue[message.delivery_info["routing_key"]](message, *args)


def _check_headers(headers: Mapping[str, Any]) -> None:
    """A job's id stands in keys, channels and events, and its name in Celery's counts. Raises ValueError.

    Celery's first protocol has them in the body, and is none of ours.
    """
    if "task" not in headers:
        raise ValueError("no task is named")
    if headers["task"] == TASK_NAME and not is_job_id(headers.get("id")):
        raise ValueError("the message's id cannot name a job")
    if not isinstance(headers.get("shadow"), str | None):
        raise ValueError("the name to be shown is none")


def put_aside(channel: Channel, reason: str) -> None:
    """Keep the message that was read last, and cannot be handled, among the dead letters."""
    raw = channel.message_read
    log.error("message put aside", reason=reason, num_bytes=len(raw))
    queue = channel.queue_read
    letters = DeadLetters.of(boot.settings().of_queue(queue))
    with channel.conn_or_acquire() as client:
        run(client, letters.bury(raw, queue=queue, reason=reason, worker=socket.gethostname()))
