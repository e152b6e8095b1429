"""Puts back what has been lost: jobs of dead workers, and messages that nobody has."""

import threading

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.ledger import Ledger

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0


class Reconciler(threading.Thread):
    """Sweeps the ledger once a second. Any number of workers may: a short lock in Redis lets one do it."""

    def __init__(self, redis: Redis, ledger: Ledger) -> None:
        super().__init__(name="reconcile", daemon=True)
        self._redis = redis
        self._ledger = ledger
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            try:
                swept = run(self._redis, self._ledger.sweep())
            except RedisError:
                continue  # the publisher says that Redis is away
            for job_id in swept.jobs:
                log.warning("job put back into the queue", job_id=job_id)
