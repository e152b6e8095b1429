"""Ends a worker that has stopped asking for messages: whoever restarts it gets one that asks again."""

import threading
from collections.abc import Collection, Set as AbstractSet
from typing import Protocol

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.ledger import Ledger
from llama_herd.worker import boot

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: After so long a silence a worker does not call itself ready any more.
UNREADY_S = 5.0


class Poller(Protocol):
    """Who asks Redis for messages, but of no queue while that is closed."""

    closed_queues: AbstractSet[str]

    @property
    def num_polls(self) -> int:
        """Answers that have come, also those that there is no message."""

    @property
    def has_room(self) -> bool:
        """Whether it wants messages at all."""


class Watchdog(threading.Thread):
    """Looks once a second whether messages are asked for.

    Silence is suspicious only while messages wait, there is room for them, and Redis answers: a full batch, a
    rate limit, an empty queue and a Redis that is away all explain it. It is counted in looks, so that a
    process which was frozen is not blamed for that.
    """

    def __init__(self, redis: Redis, ledger: Ledger, queues: Collection[str], silence_s: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._redis = redis
        self._depths = [ledger.queue_depth(queue) for queue in queues]
        self._queues = ", ".join(queues)
        self._silence_s = silence_s
        self._poller: Poller | None = None
        self._num_polls = 0
        self._num_silent_looks = 0
        self._is_stopping = threading.Event()

    @property
    def silent_s(self) -> float:
        """How long messages have waited without being asked for."""
        return self._num_silent_looks * INTERVAL_S

    def watch(self, poller: Poller) -> None:
        """Watch this one from now on; there is a new one after each lost connection."""
        self._poller = poller

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            if self._poller is not None:
                self._num_silent_looks = self._num_silent_looks + 1 if self._is_silent(self._poller) else 0
            if self.silent_s >= self._silence_s:
                log.critical(
                    "no message is taken, though some wait", queue=self._queues, seconds=self.silent_s
                )
                boot.end_at_once(boot.EXIT_SILENT)

    def _is_silent(self, poller: Poller) -> bool:
        before, self._num_polls = self._num_polls, poller.num_polls
        if before != self._num_polls or not poller.has_room:
            return False
        try:
            return any(run(self._redis, depth) > 0 for depth in self._depths)
        except RedisError:
            return False
