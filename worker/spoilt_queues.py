"""Queues that are left out for a while, since something else lies where one of their lists should be."""

from collections.abc import Sequence
from math import inf
from time import monotonic

import structlog
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.priority import LANES

log = structlog.get_logger(__name__)

#: How often a queue that is left out is looked at again.
LOOK_AGAIN_S = 2.0


def is_wrong_type(error: object) -> bool:
    """Whether Redis has refused a command since its key holds another type."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


class SpoiltQueues:
    """Who may write to a queue can put a set or a string where a list was. Redis then refuses every call that
    asks this list among others, also for the messages of other tenants: so it is not asked any more.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._look_again_s = inf

    @property
    def are_due(self) -> bool:
        """Whether it is time to look again at what is left out."""
        return monotonic() >= self._look_again_s

    def look(self, client: Redis, queues: Sequence[str]) -> None:
        """Find out which of these queues are to be left out; say which are so from now on, or no more.

        Raises RedisError.
        """
        lists = [(queue, queue + lane) for queue in queues for lane in LANES]
        with client.pipeline(transaction=False) as pipeline:
            for _, name in lists:
                pipeline.llen(name)
            answers = pipeline.execute(raise_on_error=False)
        looked_at = zip(lists, answers, strict=True)
        wrong = {queue: name for (queue, name), answer in looked_at if is_wrong_type(answer)}
        for queue in wrong.keys() - self.names:
            log.error(
                "queue left out, what is in the place of its list is none", queue=queue, key=wrong[queue]
            )
        for queue in self.names - wrong.keys():
            log.info("queue is read again", queue=queue)
        self.names = frozenset(wrong)
        self._look_again_s = monotonic() + LOOK_AGAIN_S if wrong else inf
