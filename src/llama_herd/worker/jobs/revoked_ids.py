"""Ids of jobs that were revoked before this worker knew them."""

from collections.abc import Iterable

#: Most ids kept for one tenant; the oldest go first.
MAX_IDS = 10_000


class RevokedIds:
    """One thread adds and drops ids, others look.

    A bare message has no record before a worker claims it, so the ledger cannot note that its job is revoked.
    As in Celery each worker remembers it by itself, and forgets it when it ends.
    """

    def __init__(self, max_ids: int = MAX_IDS) -> None:
        self._max_ids = max_ids
        self._ids: dict[str, None] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._ids.pop(job_id, None)
            self._ids[job_id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]

    def drop(self, job_id: str) -> None:
        self._ids.pop(job_id, None)
