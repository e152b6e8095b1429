"""The notes of the messages in workers' hands: kombu's keys and form, and our calls on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call

#: Most messages of a lot: as many as are handled between two looks at what else happens. One ends with the
#: message that goes beyond so many bytes: Redis does nothing else meanwhile.
MAX_MESSAGES, MAX_LOT_BYTES = 32, 1 << 18

#: Most messages of a call, and about how many bytes one moves: Redis waits meanwhile.
MAX_TAGS, MAX_BYTES = 250, 1 << 20


class TakenMessage(NamedTuple):
    """A message that this worker holds now. tag: the one under which it is noted, whatever its own is."""

    list: str
    tag: str
    raw: bytes


class MessageLot(NamedTuple):
    """Messages that were taken; or none, and the mark of the next one, which is left to other workers."""

    messages: list[TakenMessage]
    left: str = ""


class PutBack(NamedTuple):
    """How many messages went back, and why Redis has refused the first of the others, which stay noted.

    Some key is no list, or Redis is full.
    """

    num: int
    refusal: str


@dataclass(frozen=True)
class MessageNotes:
    """Where workers note under tags what they hold, and since when: each tenant has its own place.

    notes, times: the keys.
    """

    notes: str
    times: str

    @classmethod
    def at(cls, key: str) -> "MessageNotes":
        return cls(key, f"{key}_index")

    def take(
        self, queue: str, orders: Sequence[Sequence[str]], leave: int = 0, left: str = ""
    ) -> RedisCall[MessageLot]:
        """Take one message for each of `orders`, the lists of the queue in the order in which they are asked.

        There are fewer where there are no more, or where these are long. The last `leave` in the queue are
        left to others, but not the one that was left before: `left`, its mark. Redis refuses it if a key that
        should be a list is none.
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
            notes=self.notes,
            times=self.times,
            queue=queue,
            max_bytes=MAX_LOT_BYTES,
            leave=leave,
            left=left,
            lists=lists,
            orders=[
                {"tag": f"{lot}:{number}", "order": " ".join(place_of[name] for name in order)}
                for number, order in enumerate(orders)
            ],
        )

    def hold(self, tags: Sequence[str]) -> list[RedisCall[None]]:
        """Calls that note that messages are still held."""
        lots = (tags[start : start + MAX_TAGS] for start in range(0, len(tags), MAX_TAGS))
        return [call("hold", lambda _: None, times=self.times, tags=lot) for lot in lots]

    def unheld(self, silent_s: float) -> RedisCall[list[bytes]]:
        """The tags of messages that nobody has noted for so long: MAX_TAGS at most, the oldest first."""
        return call("unheld", list, times=self.times, silent_s=silent_s, most=MAX_TAGS)

    async def put_back(self, tags: Sequence[str | bytes], *, at_end: bool = False) -> PutBack:
        """Put messages back into their lists, the last one before the others; `at_end`: behind all."""
        num, refusal = 0, ""
        while tags:
            num_seen, num_back, found = await self._put_back(tags[:MAX_TAGS], at_end)
            tags, num, refusal = tags[num_seen:], num + num_back, refusal or found
        return PutBack(num, refusal)

    def _put_back(self, tags: Sequence[str | bytes], at_end: bool) -> RedisCall[tuple[int, int, str]]:
        return call(
            "put_back",
            lambda reply: (reply[0], reply[1], text(reply[2])),
            notes=self.notes,
            times=self.times,
            at_end=int(at_end),
            max_bytes=MAX_BYTES,
            tags=tags,
        )
