"""The messages that a worker holds: what each may say, and how kombu's notes of them in Redis are kept."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog
from kombu.asynchronous import get_event_loop
from kombu.message import Message
from kombu.transport import redis as redis_transport, virtual
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.ops.logs import error_name
from llama_herd.tasks.ledger.redis_call import run_dialogue

if TYPE_CHECKING:
    from llama_herd.worker.broker.queue_channel import QueueChannel

log = structlog.get_logger(__name__)

#: How long acks are gathered. A message that comes again meanwhile finds that its job has ended.
ACKS_S = 0.02


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
    """Knows which messages this worker holds, and takes back the notes of those that it lets go."""

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
        if not tags or not self.channel.has_way:
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

    @property
    def num(self) -> int:
        """How many messages this worker holds, including those whose ETA has not come."""
        return len(self._delivered) - len(self._dirty)

    def num_held(self) -> Counter[str]:
        """The same by queue."""
        held = [message for tag, message in self._delivered.items() if tag not in self._dirty]
        return Counter(message.delivery_info["routing_key"] for message in held)

    @property
    def tags_held(self) -> Sequence[str]:
        """Of all messages that this worker holds, but not of those that are acked; any thread may ask."""
        return [tag for tag in tuple(self._delivered) if tag not in self._dirty]

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Leave what nobody holds to the sweeper; kombu looks for it on the hub's thread."""

    def restore_unacked(self, client: Redis | None = None) -> None:
        """Put back all messages that this worker holds, the first one before the others."""
        self._put_back([*reversed(self._delivered)])
        self._delivered.clear()

    def restore_by_tag(self, tag: str, client: Redis | None = None, leftmost: bool = False) -> None:
        """Put a message back, behind all others if `leftmost`."""
        self._put_back([tag], at_end=leftmost)

    def _put_back(self, tags: list[str], *, at_end: bool = False) -> None:
        with self.channel.conn_or_acquire() as client:
            done = run_dialogue(client, self.channel.notes.put_back(tags, at_end=at_end))
        if done.refusal:
            log.error("messages not put back, they stay noted as held", error=done.refusal)
