"""Stray lists of a queue: a producer with a `sep` of its own has made them, and no worker asks them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.ledger.script_call import call

_GATHER = Script("gather")

#: Most messages that one call moves, and about how many bytes: Redis waits meanwhile.
MAX_MOVES, MAX_BYTES = 256, 1 << 20


class Gathered(NamedTuple):
    """The messages that were moved from the lists of one separator, and whether there may be more."""

    queue: str
    separator: str
    num_moved: int
    has_more: bool


def binding_key(queue: str) -> str:
    """Key of Celery's note of how a queue's producers name it."""
    return f"_kombu.binding.{queue}"


def gather_strays(queues: Sequence[str]) -> RedisCall[list[Gathered]]:
    """Lead the messages of these queues' stray lists into those that workers ask.

    Only separators are known that a producer has declared the queue with, as Celery does when it sends.
    """

    def parse(reply: Sequence[Any]) -> list[Gathered]:
        rows = zip(reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=True)
        return [Gathered(text(queue), text(sep), num, more == 1) for queue, sep, num, more in rows]

    return call(
        _GATHER,
        parse,
        max_moves=MAX_MOVES,
        max_bytes=MAX_BYTES,
        queues=queues,
        bindings=list(map(binding_key, queues)),
    )
