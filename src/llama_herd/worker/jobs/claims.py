"""The jobs that this worker has claimed and not ended, in one place for all threads."""

import threading
from collections.abc import Callable

from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.jobs.attempt import Attempt


class ClaimedJobs:
    """Attempts by job id. Any thread may call.

    An attempt is in hand from `begin` to `end`. It ends once, and the caller that ends it acts on that.
    Attempts are compared by identity, since a new one at the same job may take the place of an old one. The
    sequences of the old one are dropped first: both have the same names in the engine.
    """

    def __init__(self, drop: Callable[[Attempt], None] = lambda _: None) -> None:
        """`drop(attempt)` takes an ended attempt's sequences out of the engine; it must not block."""
        self._drop = drop
        self._by_id: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def begin(self, attempt: Attempt) -> Attempt | None:
        """Take an attempt in hand. Ends and returns an earlier one at the same job, if there is any."""
        with self._lock:
            earlier = self._by_id.get(attempt.job_id)
            if earlier is not None:
                self._remove(earlier)
            self._by_id[attempt.job_id] = attempt
            return earlier

    def end(self, attempt: Attempt) -> bool:
        """Take an attempt out of hand. False if it was in hand no longer."""
        with self._lock:
            if self._by_id.get(attempt.job_id) is not attempt:
                return False
            self._remove(attempt)
            return True

    def adopt(self, delivery: Delivery) -> bool:
        """Add another message of a job to its attempt in hand. False if there is none."""
        with self._lock:
            attempt = self._by_id.get(delivery.job_id)
            if attempt is not None:
                attempt.deliveries.append(delivery)
            return attempt is not None

    def get(self, job_id: str) -> Attempt | None:
        return self._by_id.get(job_id)

    def in_hand(self) -> list[Attempt]:
        """All attempts in hand, the earliest claimed first."""
        with self._lock:
            return list(self._by_id.values())

    def _remove(self, attempt: Attempt) -> None:
        del self._by_id[attempt.job_id]
        attempt.is_over = True
        self._drop(attempt)
