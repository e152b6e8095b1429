"""Puts back what has been lost: jobs of dead workers, and messages that nobody has."""

import threading

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger import Ledger, run

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0


class Reconciler(threading.Thread):
    """Sweeps the ledger once a second. Any number of workers may: a short lock in Redis lets one do it."""

    def __init__(self, redis: Redis, ledger: Ledger, owner: str) -> None:
        super().__init__(name="reconcile", daemon=True)
        self._redis = redis
        self._ledger = ledger
        self._owner = owner
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            try:
                num_pushed = run(self._redis, self._ledger.sweep(self._owner))
            except RedisError:
                continue  # the publisher says that Redis is away
            if num_pushed:
                log.warning("jobs put back into the queue", num_jobs=num_pushed)
