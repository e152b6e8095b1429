"""The channel that reads the queues.

A stock worker exits on an item that it cannot read. Some such items are put back, and end the next worker
too. Here they go to the dead letters, with the reason.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from math import inf
from random import uniform
from time import monotonic
from typing import Any

import structlog
from kombu.asynchronous import get_event_loop
from kombu.transport import redis as redis_transport
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis import Redis
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from llama_herd.tasks.connection.temporary_errors import is_wrong_type
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.worker import process
from llama_herd.worker.broker.held_messages import QoS, RawMessage
from llama_herd.worker.broker.held_places import HeldPlaces
from llama_herd.worker.broker.later_tasks import LaterTasks
from llama_herd.worker.broker.long_messages import TooLong, short_stand_in
from llama_herd.worker.broker.message_json import UNREADABLE
from llama_herd.worker.broker.message_notes import MAX_MESSAGES, MessageLot, MessageNotes, TakenMessage
from llama_herd.worker.broker.message_wait import MessageWait
from llama_herd.worker.broker.queue_order import QueueOrder
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues
from llama_herd.worker.insisting import insist

log = structlog.get_logger(__name__)

#: How long a worker leaves a message to others if its batch is all but full; half as long if it is half full.
BUSY_DELAY_S = 0.004
#: How long besides, drawn at random for each other that may look: all do in turn, one in half of this time.
CROWD_DELAY_S = 0.001
#: How long a worker whose rows are all taken leaves a message once it has seen it: it would wait here.
FULL_DELAY_S = 0.02
#: How long to wait for messages of some queues, where another may give one once a job of it has ended.
LEFT_OUT_S = 0.02


class QueueChannel(redis_transport.Channel):  # type: ignore[misc]
    """Reads the queues; an unreadable item is put aside instead of ending the loop."""

    QoS = QoS
    Message = RawMessage

    #: The worker's node name.
    worker = ""
    from_transport_options = (*redis_transport.Channel.from_transport_options, "worker")

    #: After so long a worker that waits looks again.
    longest_wait_s = 1.0
    #: Looks for messages that Redis has answered.
    num_polls = 0
    #: Whether this worker takes no messages of a queue now, although it may have room for them.
    pauses: Callable[[str], bool] = staticmethod(lambda _: False)
    #: How many other workers read the same queues.
    num_others: Callable[[], int] = staticmethod(lambda: 0)
    #: How many of these have free rows, at most.
    num_idle_others: Callable[[], int] = staticmethod(lambda: 0)
    _wait: MessageWait | None = None
    _taken: TakenMessage | None = None
    _is_untold = False  # whether the log has that Redis does not tell of messages
    _notes_client: Redis | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._order = QueueOrder()
        self._left: dict[str, str] = {}  # by queue: the mark of the message that was left to others
        self._left_until_s = 0.0
        self.spoilt = SpoiltQueues()
        self.later = LaterTasks()
        super().__init__(*args, **options)

    @property
    def has_room(self) -> bool:
        """Whether this worker wants messages."""
        return bool(self.qos.can_consume())

    @property
    def tags_held(self) -> Sequence[str]:
        """The tags under which the messages are noted that this worker holds; any thread may ask."""
        tags: Sequence[str] = self.qos.tags_held
        return tags

    @cached_property
    def notes(self) -> MessageNotes:
        return MessageNotes(self.unacked_key, self.unacked_index_key)

    @cached_property
    def places(self) -> HeldPlaces:
        return HeldPlaces(self)

    @property
    def unpaused_queues(self) -> list[str]:
        return [queue for queue in self.active_queues if not self.pauses(queue)]

    @property
    def is_paused(self) -> bool:
        """Whether there are queues, and all are paused; a channel of remote control has none."""
        return bool(self.active_queues) and not self.unpaused_queues

    @property
    def queue_read(self) -> str:
        """The queue of the message that is handled, whichever of its lists that came from; else empty."""
        return self._taken.list.partition(self.sep)[0] if self._taken else ""

    @property
    def tag_read(self) -> str:
        """The tag under which the message is noted that is handled; else empty."""
        return self._taken.tag if self._taken else ""

    def close(self) -> None:
        self._in_poll = None  # no message can be on its way
        self.qos.take_back_notes()
        try:
            super().close()
        except RedisError:
            if not self.closed:
                super().close()  # kombu stops half way when the connection breaks at a message
            raise
        finally:
            self.hang_up()

    @property
    def has_way(self) -> bool:
        """Whether Redis can be called: once closed only where kombu has put messages back since."""
        return self.connection is not None or self._pool is not None

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

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Have Redis tell of changes where messages are waited for, which it does in RESP3 only.

        Not checked by PING before it is used: redis-py up to 5.2 would ask for one before it has logged in.
        """
        params: dict[str, Any] = super()._connparams(asynchronous)
        return {**params, "protocol": 3, "health_check_interval": 0} if asynchronous else params

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
        """Look for messages, unless some were just left; kombu would ask for one by BRPOP."""
        if monotonic() < self._left_until_s:
            return
        if self.spoilt.are_due:
            self._look_for_spoilt()
        self.later.note(self.places.taken_by_later)
        num_in_hand = self.places.num_in_hand
        queues = [one for one in self.unpaused_queues if one not in self.spoilt.names]
        now = self.places.open_now(num_in_hand)
        allowed = now & self.places.open_later(num_in_hand)
        if asked := self._order.in_turn([one for one in queues if one in allowed], num_in_hand):
            longest_s = self.longest_wait_s if now.issuperset(queues) else LEFT_OUT_S
            self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            self._wait = MessageWait(self._in_poll, {one: lists_of(one) for one in asked}, longest_s)
        else:
            self.num_polls += 1  # nobody may be asked, so this is no silence

    def end_wait(self) -> None:
        """Have kombu look for messages again, if it is time for that."""
        if self._wait is not None and monotonic() >= self._wait.until_s:
            self._wait = self._in_poll = None

    @property
    def wait_left_s(self) -> float:
        """How long until it is time for that, unless something comes before."""
        if self._wait is not None:
            return max(0.0, self._wait.until_s - monotonic())
        left_s = self._left_until_s - monotonic()
        return left_s if left_s > 0 else inf

    def _look_for_spoilt(self) -> None:
        with self.conn_or_acquire() as client:
            self.spoilt.look(client, self.active_queues)

    def _brpop_read(self, **options: Any) -> Any:
        """Read the answer to a look, or that a list has changed. Take messages if there are some."""
        if self._wait is None:
            self._pass_over()
            raise redis_transport.Empty
        try:
            found = self._wait.read(self._delay_s)
        except RedisError:
            self._wait = self._in_poll = None
            self.client.connection.disconnect()
            raise
        self.num_polls += 1
        self._note_refusal(self._wait.refusal)
        if found:
            self._wait = self._in_poll = None
            if self._take_lot(found):
                return True
        if (hub := get_event_loop()) is not None and self.wait_left_s < inf:
            hub.call_later(self.wait_left_s, self.end_wait)
        raise redis_transport.Empty

    @property
    def _delay_s(self) -> float:
        """How long to leave a message to others: Redis tells all who wait.

        The idlest is to have it. And the looks of a crowd would cost Redis more than the message if all came
        at once; drawn over a time as long as the crowd is large, they are some 2,000 a second at most.
        """
        if not (num_others := self.num_others()):
            return 0.0
        num_free = self._num_free_rows
        num_looking = self.num_idle_others() if num_free else num_others
        share_taken = 1 - num_free / process.own_settings().slots
        return BUSY_DELAY_S * share_taken + uniform(0, CROWD_DELAY_S * num_looking)

    @property
    def _num_free_rows(self) -> int:
        """How many more messages can run here at once, if each is a job of one row."""
        settings = process.own_settings()
        num_free_places: int = self.qos.can_consume_max_estimate() or 0
        return max(0, num_free_places - settings.num_places + settings.slots)

    def _pass_over(self) -> None:
        """Read what Redis tells a worker that waits for nothing, as it has no room; kombu connects again."""
        try:
            self.client.connection.read_response(push_request=True)
        except self.connection_errors:
            self.client.connection.disconnect()

    def _take_lot(self, found: Sequence[str]) -> bool:
        """Take what waits in the first queue that has messages, in one round trip, and handle it.

        A worker that stops takes none, nor of a queue that it has left or that is paused. Returns whether
        there were any.
        """
        queue = found[0]
        if self._closing or not self.has_room or queue not in self.unpaused_queues:
            return False
        lot = self._take(queue, self._num_wanted(found))
        for taken in lot.messages:
            self._order.note(queue)
            self._handle(taken)
        self.later.note(self.places.taken_by_later)  # there may be no more looks until one is due
        return bool(lot.messages)

    def _num_wanted(self, found: Sequence[str]) -> int:
        """How many messages of the first queue to take, of those that have some.

        No more than is its turn, one where messages for later are counted, and none that would wait here
        beside others that run: another worker may run it at once.
        """
        queue, num_in_hand = found[0], self.places.num_in_hand
        if self.places.counts_later:
            return 1
        most = min(MAX_MESSAGES, self.qos.can_consume_max_estimate() or MAX_MESSAGES)
        if self.num_others():
            most = min(most, self._num_free_rows or most)
        places = self.places.now.left_to(queue, self.active_queues, num_in_hand)
        return self._order.num_in_turn(found, num_in_hand, min(most, places))

    def _take(self, queue: str, num: int) -> MessageLot:
        """Take messages. If all rows are taken here, the last ones are left to others, for a while."""
        orders, left = self._order.of_next(queue, num), self._left.get(queue, "")
        leave = 0 if self._num_free_rows else self.num_others()
        taking = self.notes.take(queue, orders, leave, left)
        try:
            with self.conn_or_acquire() as client:
                lot = run_call(client, taking)
        except RedisError as error:
            if not is_wrong_type(error):
                raise
            self._look_for_spoilt()
            return MessageLot([])
        self._left[queue] = lot.left
        if lot.left:
            self._left_until_s = monotonic() + FULL_DELAY_S
        return lot

    def _handle(self, taken: TakenMessage) -> None:
        """Have Celery handle a message; one that it cannot read is put aside."""
        self._taken = taken
        try:
            if len(taken.raw) > process.own_settings().max_message_bytes:
                raise TooLong
            self.connection._deliver(loads(bytes_to_str(taken.raw)), self.queue_read)
        except UNREADABLE as error:
            self.put_aside(type(error).__name__)
            self.qos.forget(taken.tag)
        finally:
            self._taken = None

    def _note_refusal(self, refusal: ResponseError | None) -> None:
        """Log once that Redis does not tell of messages, so that they are looked for more often."""
        if refusal is not None and not self._is_untold:
            log.info("looking for messages often, Redis does not tell of them", reason=str(refusal))
        self._is_untold = refusal is not None

    def put_aside(self, reason: str) -> None:
        """Keep the message that is read, and cannot be handled, among the dead letters."""
        raw, queue = (self._taken.raw if self._taken else b""), self.queue_read
        self._bury(raw, queue, reason)
        if len(raw) > process.own_settings().max_message_bytes and (told := short_stand_in(raw, queue)):
            with self.conn_or_acquire() as client:
                insist(partial(client.rpush, queue, told), "the stand-in of a long message")

    def _bury(self, raw: bytes, queue: str, reason: str) -> None:
        """Write a dead letter. Nobody else may have the message, so no other is taken before."""
        log.error("message put aside", reason=reason, num_bytes=len(raw))
        letters = DeadLetters.from_settings(process.own_settings().for_queue(queue))
        letter = letters.bury(raw, queue=queue, reason=reason, worker=self.worker)
        with self.conn_or_acquire() as client:
            insist(partial(run_call, client, letter), "a dead letter")
