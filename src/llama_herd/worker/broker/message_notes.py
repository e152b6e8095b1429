"""The notes of the messages in workers' hands: kombu's keys and form, and our calls on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call

#: Most messages of a call, and about how many bytes one moves: Redis waits meanwhile.
MAX_TAGS, MAX_BYTES = 250, 1 << 20


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
