"""Hands finished jobs back to Celery: the result from the stream, then the tracer, then the ack."""

import threading
from concurrent.futures import ThreadPoolExecutor

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.result import Result
from llama_herd.worker.delivery import Delivery

log = structlog.get_logger(__name__)

NUM_THREADS = 2

#: Pause between two tries of a Redis that does not answer.
RETRY_S = 0.5


class Finisher:
    """Settles the deliveries of jobs whose final event is in the ledger.

    The result is always folded from the stream, so it cannot differ from what subscribers have read, whoever
    wrote it and however often the job's message comes back.
    """

    def __init__(self, redis: Redis, ledger: Ledger) -> None:
        self._redis = redis
        self._ledger = ledger
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="finisher")
        self._is_stopping = threading.Event()

    def settle(self, job_id: str, deliveries: list[Delivery]) -> None:
        """Settle one delivery, acknowledge its doubles; returns at once."""
        self._executor.submit(self._settle, job_id, deliveries)

    def stop(self) -> None:
        """Finish what is under way; messages that could not be settled come back and are settled then."""
        self._is_stopping.set()
        self._executor.shutdown()

    def _settle(self, job_id: str, deliveries: list[Delivery]) -> None:
        try:
            outcome = self._outcome(job_id)
            if outcome is None:
                log.warning("job is over, but its stream is forgotten", job_id=job_id)
            else:
                deliveries.pop(0).settle(outcome)
                _log_end(outcome)
            for delivery in deliveries:
                delivery.acknowledge()
        except Exception:
            log.exception("could not settle, the message will come back", job_id=job_id)

    def _outcome(self, job_id: str) -> Result | None:
        while True:
            try:
                events = run(self._redis, self._ledger.read(job_id))
            except RedisError:
                if self._is_stopping.wait(RETRY_S):
                    raise
            else:
                return Result.from_events(events) if events else None


def _log_end(result: Result) -> None:
    log.info(
        "job ended",
        job_id=result.job,
        finish_reason=result.finish_reason,
        tokens=len(result.ids),
        attempts=result.attempts,
        total_s=result.timings.total_s if result.timings else None,
    )
