"""Puts jobs back into the queue: those of dead workers, those whose message was lost, those without room."""

import threading

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.answers import Origin
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.passing import passes, said
from llama_herd.tasks.ledger.redis_call import run, run_many
from llama_herd.worker.jobs.event_log import Author
from llama_herd.worker.jobs.overflow import Overflow

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: Most characters of an error that are logged.
MAX_COMPLAINT = 200


class Sweeper(threading.Thread):
    """Once a second sweeps the ledger, and releases jobs that wait here though another worker has room.

    Any number of workers may sweep: a short lock in Redis admits one at a time.
    """

    def __init__(self, redis: Redis, ledger: Ledger, overflow: Overflow) -> None:
        super().__init__(name="sweeper", daemon=True)
        self._redis = redis
        self._ledger = ledger
        self._overflow = overflow
        self._is_stopping = threading.Event()
        self._complaint = ""
        #: Jobs whose message it has pushed again.
        self.num_put_back = 0

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            for act in (self._overflow.shed, self._sweep):
                try:
                    act()
                except RedisError as error:
                    self._complain(error)

    def _complain(self, error: RedisError) -> None:
        """Log an error that will not pass, such as a spoilt key, once. The publisher logs the others."""
        complaint = said(error)[:MAX_COMPLAINT]
        if not passes(error) and complaint != self._complaint:
            log.error("sweep failed", error=complaint)
            self._complaint = complaint

    def _sweep(self) -> None:
        job_ids = run(self._redis, self._ledger.sweep()).jobs
        self.num_put_back += len(job_ids)
        origins = run_many(self._redis, [self._ledger.origin(job_id) for job_id in job_ids])
        for job_id, found in zip(job_ids, origins, strict=True):
            origin = found if isinstance(found, Origin) else Origin("", 0, None)
            log.warning("job put back into the queue", **self._line(job_id, origin))

    def _line(self, job_id: str, origin: Origin) -> dict[str, object]:
        """What the log says of a job, which may be of a model that other workers serve."""
        author = Author(self._ledger.worker, origin.model, self._ledger.tenant)
        return author.line(job_id, origin.num_starts, origin.trace_id)._asdict()
