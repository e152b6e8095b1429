"""Lists with messages that no worker reads: whether there are any, and whose they are."""

import re
from collections.abc import Iterator
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from llama_herd.cli.doctor.finding import Finding
from llama_herd.errors import HerdError
from llama_herd.tasks.connection import connect, redis_errors
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.priority import lists_of

#: Most keys that are looked through, in steps of so many, and most lists that are named.
MAX_KEYS, STEP, MAX_NAMED = 200_000, 1000, 5

#: How far before its end a message's own routing is searched: kombu writes its properties last.
TAIL_BYTES = 4096

_ROUTED = re.compile(rb'"routing_key": ?"([^"\\]+)"')
_FIX = (
    "leave `sep`, `global_keyprefix` and `priority_steps` beyond 0 to 9 out of the producer's "
    "broker_transport_options, then send these messages anew"
)


def check_queue_lists(url: str) -> Iterator[Finding]:
    """Name the lists that hold messages for a model's queue under a name that no worker asks."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            unread = _unread_lists(redis)
    except (HerdError, RedisError):  # another check has told, or this user may not see the keys
        return
    if unread:
        named = ", ".join(f"{name!r} ({num:,})" for name, num in unread[:MAX_NAMED])
        more = f" and {len(unread) - MAX_NAMED} more" if len(unread) > MAX_NAMED else ""
        detail = f"messages lie in lists that no worker reads: {named}{more}"
        yield Finding("queues", "warn", detail, _FIX)


def _unread_lists(redis: Redis) -> list[tuple[str, int]]:
    """Such lists and their lengths, of the first MAX_KEYS keys."""
    found = []
    for key in _list_names(redis):
        try:
            message, num = redis.lindex(key, -1), redis.llen(key)
        except ResponseError:  # it was replaced, or is another tenant's
            continue
        routed = _ROUTED.findall(message[-TAIL_BYTES:] if isinstance(message, bytes) else b"")
        queue = text(routed[-1]) if routed else ""
        if queue.startswith("herd.") and text(key) not in lists_of(queue):
            found.append((text(key), num))
    return found


def _list_names(redis: Redis) -> Iterator[Any]:
    cursor, num_keys = 0, 0
    while num_keys < MAX_KEYS:
        cursor, keys = redis.scan(cursor, match="*herd.*", count=STEP, _type="list")
        num_keys += STEP
        yield from keys
        if not cursor:
            return
