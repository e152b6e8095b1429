"""The messages that a worker holds: what each may say, and how kombu's notes of them in Redis are kept."""

from collections import Counter
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Any

import structlog
from kombu.asynchronous import get_event_loop
from kombu.message import Message
from kombu.transport import redis as redis_transport, virtual
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from llama_herd.ops.logs import error_name
from llama_herd.worker.broker.spoilt_queues import is_wrong_type

if TYPE_CHECKING:
    from llama_herd.worker.broker.queue_channel import QueueChannel

log = structlog.get_logger(__name__)

#: How long acks are gathered. A message that comes again meanwhile finds that its job has ended.
ACKS_S = 0.02

#: What reading a hostile message can raise, besides the errors of the connection itself.
UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class RawMessage(virtual.Message):  # type: ignore[misc]
    """A message of the queue, without the power that its sender has by properties and headers.

    It is put back into the queue that it came from, whatever list its sender names. No event shows its
    arguments, which hold prompts.
    """

    def __init__(self, payload: Any, channel: "QueueChannel", **options: Any) -> None:
        """A message of remote control comes by no queue, and goes back to none."""
        properties = payload["properties"]
        place = {"exchange": "", "routing_key": channel.queue_read}
        properties["delivery_info"] = {**properties["delivery_info"], **place}
        payload["headers"] = {**payload["headers"], "argsrepr": "()", "kwargsrepr": "{}"}
        super().__init__(payload, channel, **options)
        self.delivery_tag: str = channel.tag_read or properties["delivery_tag"]


class QoS(redis_transport.QoS):  # type: ignore[misc]
    """Notes which messages this worker holds, so that none is taken for lost, however long it is held."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acked: list[str] = []  # whose notes are still to be taken back
        self._takes_back_soon = False

    def can_consume(self) -> bool:
        return not self.channel.is_paused and bool(super().can_consume())

    def append(self, message: Message, delivery_tag: str) -> None:
        """Keep a message. It is noted in Redis already: `take.lua` does that as it takes it."""
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Let a message go. Its note is taken back together with those of others, which saves round trips."""
        virtual.QoS.ack(self, delivery_tag)
        self._acked.append(delivery_tag)
        hub = get_event_loop()
        if self.channel.closed or hub is None:
            self.take_back_notes()
        elif not self._takes_back_soon:
            hub.call_later(ACKS_S, self.take_back_notes)
            self._takes_back_soon = True

    def take_back_notes(self) -> None:
        """Forget in Redis what was acked. If it is away, that is tried again when a message is acked."""
        tags, self._acked, self._takes_back_soon = self._acked, [], False
        if not tags:
            return
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()
        except RedisError as error:
            log.warning("messages not acked, trying again with the next one", error=error_name(error))
            self._acked = tags + self._acked
        self.channel.hang_up()

    def forget(self, delivery_tag: str | bytes) -> None:
        """Take back the note of a message that nobody could read."""
        self._remove_from_indices(delivery_tag).execute()

    def num_held(self) -> Counter[str]:
        """Messages by queue, including those whose ETA has not come."""
        held = [message for tag, message in self._delivered.items() if tag not in self._dirty]
        return Counter(message.delivery_info["routing_key"] for message in held)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Put back what nobody holds any more, at each call: by itself kombu does so at every tenth.

        A Redis that is full does nothing of it.
        """
        held = {tag: time() for tag in self._delivered if tag not in self._dirty}
        with suppress(OutOfMemoryError):
            if held:
                # Not by the channel's client, whose connection waits for a message. No tag that is acked.
                with self.channel.conn_or_acquire() as client:
                    client.zadd(self.unacked_index_key, held, xx=True)
            super().restore_visible(*args, **{**options, "interval": 1})

    def restore_by_tag(self, tag: str | bytes, *args: Any, **options: Any) -> None:
        """Put a message back. If its queue's key is no longer a list, log it and go on with the others."""
        try:
            super().restore_by_tag(tag, *args, **options)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            log.error("message not put back, its queue is not a list")
        except UNREADABLE as error:
            # Redis reads some JSON that Python does not: noted in a lot, and then its worker died.
            self.channel.put_aside_note(tag, type(error).__name__)
