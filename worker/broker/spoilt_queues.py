"""Queues that are left out for a while, since something else lies where one of their lists should be."""

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import structlog
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.priority import LANES

log = structlog.get_logger(__name__)

#: How often a queue that is left out is looked at again.
LOOK_AGAIN_S = 2.0


class Spoilt(NamedTuple):
    """A key in the place of a list, and what it holds; empty: this worker's user may not ask."""

    key: str
    type: str


def is_wrong_type(error: object) -> bool:
    """Whether Redis has refused a command since its key holds another type."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


class SpoiltQueues:
    """Who may write to a queue can put a set or a string where a list was. Redis then refuses every call that
    asks this list among others, also for the messages of other tenants: so it is not asked any more.
    """

    def __init__(self) -> None:
        self.found: Mapping[str, Spoilt] = {}
        self._look_again_s = inf

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.found)

    @property
    def are_due(self) -> bool:
        """Whether it is time to look again at what is left out."""
        return monotonic() >= self._look_again_s

    def look(self, client: Redis, queues: Sequence[str]) -> None:
        """Find out which of these queues are to be left out; say which are so from now on, or no more.

        Raises RedisError.
        """
        lists = [(queue, queue + lane) for queue in queues for lane in LANES]
        looked_at = zip(lists, _answers(client, "LLEN", [key for _, key in lists]), strict=True)
        wrong = {queue: key for (queue, key), answer in looked_at if is_wrong_type(answer)}
        types = _answers(client, "TYPE", list(wrong.values()))
        found = {
            queue: Spoilt(key, "" if isinstance(answer, ResponseError) else bytes_to_str(answer))
            for (queue, key), answer in zip(wrong.items(), types, strict=True)
        }
        for queue in found.keys() - self.names:
            spoilt = found[queue]
            log.error(
                "queue left out, its key is not a list",
                queue=queue,
                key=spoilt.key,
                type=spoilt.type,
            )
        for queue in self.names - found.keys():
            log.info("queue is read again", queue=queue)
        self.found = found
        self._look_again_s = monotonic() + LOOK_AGAIN_S if found else inf


def _answers(client: Redis, command: str, keys: Sequence[str]) -> list[Any]:
    """One of a command on each key, an error in its place."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.execute_command(command, key)  # type: ignore[no-untyped-call]
        return pipeline.execute(raise_on_error=False)
