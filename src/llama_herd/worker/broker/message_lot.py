"""Several messages of a queue, taken and noted as held in one round trip."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.script_call import call
from llama_herd.worker.broker.message_notes import MessageNotes

#: Most messages of a lot: as many as are handled between two looks at what else happens.
MAX_MESSAGES = 32

#: A lot ends with the message that goes beyond: Redis does nothing else meanwhile.
MAX_BYTES = 1 << 18


class TakenMessage(NamedTuple):
    """A message that this worker holds now. tag: the one under which it is noted, whatever its own is."""

    list: str
    tag: str
    raw: bytes


class MessageLot(NamedTuple):
    """Messages that were taken; or none, and the mark of the next one, which is left to other workers."""

    messages: list[TakenMessage]
    left: str = ""


def take_messages(
    queue: str,
    orders: Sequence[Sequence[str]],
    notes: MessageNotes,
    leave: int = 0,
    left: str = "",
) -> RedisCall[MessageLot]:
    """Take one message for each of `orders`, the lists of the queue in the order in which they are asked.

    There are fewer where there are no more, or where these are long. The last `leave` in the queue are left
    to others, but not the one that was left before: `left`, its mark. Redis refuses it if a key that should
    be a list is none.
    """
    lists = sorted(set().union(*orders))
    place_of = {name: str(place) for place, name in enumerate(lists, start=1)}
    lot = uuid4()

    def parse(reply: Sequence[Any]) -> MessageLot:
        parts = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        messages = [TakenMessage(lists[place - 1], tag.decode(), raw) for place, tag, raw in parts]
        return MessageLot(messages, reply[0].decode())

    return call(
        "take",
        parse,
        notes=notes.notes,
        times=notes.times,
        queue=queue,
        max_bytes=MAX_BYTES,
        leave=leave,
        left=left,
        lists=lists,
        orders=[
            {"tag": f"{lot}:{number}", "order": " ".join(place_of[name] for name in order)}
            for number, order in enumerate(orders)
        ],
    )
