"""The channel that reads the queues.

A stock worker exits on an item that it cannot read. Some such items are put back, and end the next worker
too. Here they go to the dead letters, with the reason.
"""

from collections import Counter
from collections.abc import Container
from functools import cached_property, partial
from time import monotonic
from typing import Any

import structlog
from celery.worker.state import reserved_requests
from kombu.transport import redis as redis_transport
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis import Redis
from redis.exceptions import DataError, OutOfMemoryError, RedisError, ResponseError

from llama_herd.tasks.app import app
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.worker import process
from llama_herd.worker.broker.held_messages import UNREADABLE, QoS, RawMessage
from llama_herd.worker.broker.long_messages import TooLong, short_stand_in
from llama_herd.worker.broker.message_lot import MAX_MESSAGES, message_in, take_messages
from llama_herd.worker.broker.queue_order import QueueOrder, QueuePlaces
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues, is_wrong_type
from llama_herd.worker.insisting import insist
from llama_herd.worker.settings import NUM_LOOK_AHEAD

log = structlog.get_logger(__name__)

#: How long Redis waits for messages of some queues, where another may give one once a job of it has ended.
LEFT_OUT_S = 0.02


class QueueChannel(redis_transport.Channel):  # type: ignore[misc]
    """Reads the queues; an unreadable item is put aside instead of ending the loop."""

    QoS = QoS
    Message = RawMessage

    #: The worker's node name.
    worker = ""
    from_transport_options = (*redis_transport.Channel.from_transport_options, "worker")

    #: Seconds that Redis waits for a message; kombu sets it from 5.6 on.
    brpop_timeout = 1
    #: Answers to "is there a message?", also those that there is none.
    num_polls = 0
    #: Queues whose messages this worker leaves alone for now, although it may have room for them.
    paused_queues: Container[str] = frozenset()
    #: The tag of the last message of a lot: Redis has noted already that it is held.
    noted_tag = ""
    _last_reply: Any = None
    _notes_client: Redis | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._order = QueueOrder()
        self.spoilt = SpoiltQueues()
        super().__init__(*args, **options)

    @property
    def has_room(self) -> bool:
        """Whether this worker wants messages."""
        return bool(self.qos.can_consume())

    @property
    def unpaused_queues(self) -> list[str]:
        return [queue for queue in self.active_queues if queue not in self.paused_queues]

    @property
    def is_paused(self) -> bool:
        """Whether there are queues, and all are paused; a channel of remote control has none."""
        return bool(self.active_queues) and not self.unpaused_queues

    @property
    def queue_read(self) -> str:
        """The queue of the last message, whichever of its lists that came from; empty before the first."""
        return str(bytes_to_str(self._last_reply[0]).partition(self.sep)[0]) if self._last_reply else ""

    def close(self) -> None:
        self.qos.take_back_notes()
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

    def _create_client(self, asynchronous: bool = False) -> Redis:
        """One client for all notes and acks by a pool; kombu makes one for each."""
        if asynchronous:
            client: Redis = super()._create_client(asynchronous=True)
            return client
        if self._notes_client is None or self._notes_client.connection_pool is not self.pool:
            self._notes_client = super()._create_client()
        return self._notes_client

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
        """Count an answer, and keep the message that may be in it. Raises TooLong."""
        self.num_polls += 1
        if reply is not None:
            self._last_reply = reply
            self._order.note(self.queue_read)
            if len(reply[1]) > process.own_settings().max_message_bytes:
                raise TooLong

    def _size(self, queue: str) -> int:
        """Always 0: nothing uses the size of a declared queue, and a spoilt key would raise here."""
        return 0

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Announce a queue to senders. A spoilt binding or a full Redis must keep no worker from starting."""
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except OutOfMemoryError:
            log.warning("queue not announced to senders, Redis is full", queue=queue)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            log.error("queue not announced to senders, its binding is not a set", queue=queue)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for a message as kombu does, but in an order of our own."""
        if self.spoilt.are_due:
            self._look_for_spoilt()
        num_in_hand = self._num_in_hand
        queues = [one for one in self.unpaused_queues if one not in self.spoilt.names]
        now = self._places_now.open_to(self.active_queues, num_in_hand)
        allowed = now & self._with_places_later(num_in_hand)
        lists = self._order.lists([one for one in queues if one in allowed], num_in_hand)
        if lists:
            wait_s = (timeout or self.brpop_timeout) if now.issuperset(queues) else LEFT_OUT_S
            self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            self._in_poll.send_command("BRPOP", *lists, wait_s)
        else:
            self.num_polls += 1  # nobody may be asked, so this is no silence

    @property
    def _num_in_hand(self) -> Counter[str]:
        """Messages by queue, but for those whose ETA has not come; nobody asks where there is one queue."""
        requests = reserved_requests if len(self.active_queues) > 1 else ()
        return Counter(request.delivery_info["routing_key"] for request in requests)

    def _with_places_later(self, num_in_hand: Counter[str]) -> set[str]:
        """The queues of which one more message for later may be taken."""
        queues = self.active_queues
        if not self._counts_later:
            return set(queues)
        return self._places_later.open_to(queues, self.qos.num_held() - num_in_hand)

    @property
    def _counts_later(self) -> bool:
        """Whether it matters whose messages are for later: of one queue Celery's own limit does."""
        return len(self.active_queues) > 1 and len(self.qos._delivered) > self._places_later.num_own

    @cached_property
    def _places_now(self) -> QueuePlaces:
        return QueuePlaces(process.own_settings().num_places, NUM_LOOK_AHEAD)

    @cached_property
    def _places_later(self) -> QueuePlaces:
        """Beyond its limit Celery would count messages for later among those for now."""
        num = app.conf.worker_eta_task_limit - process.own_settings().num_places
        return QueuePlaces(num, num // (2 * len(self.active_queues)))

    def _look_for_spoilt(self) -> None:
        with self.conn_or_acquire() as client:
            self.spoilt.look(client, self.active_queues)

    def _brpop_read(self, **options: Any) -> Any:
        """Read the answer to BRPOP; an item that cannot be read is put aside, and the loop goes on."""
        try:
            super()._brpop_read(**options)
        except (*UNREADABLE, DataError) as error:  # as of a tag that Redis does not take
            self.put_aside(type(error).__name__)
            raise redis_transport.Empty from None
        except RedisError as error:
            if not is_wrong_type(error):
                raise
            self._look_for_spoilt()
            raise redis_transport.Empty from None
        self._take_lot()
        return True

    def _take_lot(self) -> None:
        """Take what waits behind the message that was just read, in one round trip.

        Of several queues this one gives no more than is its turn, and nothing more where messages for later
        are counted. A worker that stops takes no more, nor of a queue that it has left or that is paused: it
        only reads what Redis has given it already.
        """
        queue, num_in_hand = self.queue_read, self._num_in_hand
        if self._closing or not self.has_room or queue not in self.unpaused_queues or self._counts_later:
            return
        most = min(MAX_MESSAGES, self.qos.can_consume_max_estimate() or MAX_MESSAGES)
        places = self._places_now.left_to(queue, self.active_queues, num_in_hand)
        num = self._order.num_in_turn(queue, num_in_hand, min(most, places))
        if num <= 0:
            return
        orders = self._order.of_next(queue, num)
        with self.conn_or_acquire() as client:
            lot = run_call(client, take_messages(queue, orders, self.unacked_key, self.unacked_index_key))
        for taken in lot:
            self._last_reply = (taken.list.encode(), taken.raw)
            self._order.note(self.queue_read)
            self.noted_tag = taken.tag
            try:
                self.connection._deliver(loads(bytes_to_str(taken.raw)), self.queue_read)
            except (*UNREADABLE, DataError) as error:
                self.put_aside(type(error).__name__)
                self.qos.forget(taken.tag)

    def put_aside(self, reason: str) -> None:
        """Keep the message that was read last, and cannot be handled, among the dead letters."""
        raw, queue = self._last_reply[1], self.queue_read
        self._bury(raw, queue, reason)
        if len(raw) > process.own_settings().max_message_bytes and (told := short_stand_in(raw, queue)):
            with self.conn_or_acquire() as client:
                insist(partial(client.rpush, queue, told), "the stand-in of a long message")

    def put_aside_note(self, tag: str | bytes, reason: str) -> None:
        """Keep a message that is noted as held, and cannot be put back, among the dead letters."""
        with self.conn_or_acquire() as client:
            note = bytes(client.hget(self.unacked_key, tag) or b"")
        self._bury(*message_in(note), reason)
        self.qos.forget(tag)

    def _bury(self, raw: bytes, queue: str, reason: str) -> None:
        """Write a dead letter. Nobody else may have the message, so no other is taken before."""
        log.error("message put aside", reason=reason, num_bytes=len(raw))
        letters = DeadLetters.from_settings(process.own_settings().for_queue(queue))
        letter = letters.bury(raw, queue=queue, reason=reason, worker=self.worker)
        with self.conn_or_acquire() as client:
            insist(partial(run_call, client, letter), "a dead letter")


class QueueTransport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with the guarded channel."""

    Channel = QueueChannel

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have the loop read a new connection, or close it: Celery forgets one that this fails for."""
        try:
            super().register_with_event_loop(connection, loop)
        except RedisError:
            self.close_connection(connection)
            raise
