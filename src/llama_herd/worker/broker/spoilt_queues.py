"""Queues that are not polled for a while, since the key of one of their lists holds another type."""

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import structlog
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.connection.temporary_errors import is_wrong_type
from llama_herd.tasks.protocol.priority import LANES

log = structlog.get_logger(__name__)

#: How often a queue that is left out is checked again.
LOOK_AGAIN_S = 2.0


class SpoiltKey(NamedTuple):
    """A key that should be a list, and its type; the type is empty if this worker may not ask for it."""

    key: str
    type: str


class SpoiltQueues:
    """Finds queues with a spoilt key: anybody who may write to a queue can put a set or a string there.

    Redis refuses every poll that includes such a key, also for the messages of other tenants. So these queues
    are left out.
    """

    def __init__(self) -> None:
        self.found: Mapping[str, SpoiltKey] = {}
        self._look_again_s = inf

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.found)

    @property
    def are_due(self) -> bool:
        """Whether it is time to check the queues that are left out."""
        return monotonic() >= self._look_again_s

    def look(self, client: Redis, queues: Sequence[str]) -> None:
        """Find the queues to leave out, and log each change. Raises RedisError."""
        lists = [(queue, queue + lane) for queue in queues for lane in LANES]
        looked_at = zip(lists, _answers(client, "LLEN", [key for _, key in lists]), strict=True)
        wrong = {queue: key for (queue, key), answer in looked_at if is_wrong_type(answer)}
        types = _answers(client, "TYPE", list(wrong.values()))
        found = {
            queue: SpoiltKey(key, "" if isinstance(answer, ResponseError) else bytes_to_str(answer))
            for (queue, key), answer in zip(wrong.items(), types, strict=True)
        }
        for queue in found.keys() - self.names:
            log.error("queue left out, its key is not a list", queue=queue, **found[queue]._asdict())
        for queue in self.names - found.keys():
            log.info("queue is read again", queue=queue)
        self.found = found
        self._look_again_s = monotonic() + LOOK_AGAIN_S if found else inf


def _answers(client: Redis, command: str, keys: Sequence[str]) -> list[Any]:
    """The answers to one command on each key; errors stand in their places."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.execute_command(command, key)  # type: ignore[no-untyped-call]
        return pipeline.execute(raise_on_error=False)
