"""The jobs that this worker has claimed and not ended: one owner for them, whichever thread asks."""

import threading

from llama_herd.worker.attempt import Attempt
from llama_herd.worker.delivery import Delivery


class ClaimedJobs:
    """Attempts by the ids of their jobs. Any thread may call.

    An attempt is in hand from `open` to `close`. It is closed once, and whoever closes it acts on that: an
    attempt is known by itself, since another one at the same job may have taken its place.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def open(self, attempt: Attempt) -> Attempt | None:
        """Take an attempt in hand. Returns an earlier one at the same job, which is closed by this."""
        with self._lock:
            earlier = self._by_id.get(attempt.job_id)
            self._by_id[attempt.job_id] = attempt
            if earlier is not None:
                earlier.is_over = True
            return earlier

    def close(self, attempt: Attempt) -> bool:
        """Let go of an attempt. False if it was not in hand any more."""
        with self._lock:
            if self._by_id.get(attempt.job_id) is not attempt:
                return False
            del self._by_id[attempt.job_id]
            attempt.is_over = True
            return True

    def adopt(self, delivery: Delivery) -> bool:
        """Give a further message of a job to the attempt in hand. False if there is none."""
        with self._lock:
            attempt = self._by_id.get(delivery.job_id)
            if attempt is not None:
                attempt.deliveries.append(delivery)
            return attempt is not None

    def get(self, job_id: str) -> Attempt | None:
        with self._lock:
            return self._by_id.get(job_id)

    def in_hand(self) -> list[Attempt]:
        """All attempts as they are now, the longest claimed first."""
        with self._lock:
            return list(self._by_id.values())
