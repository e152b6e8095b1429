"""Rows whose model no worker has: they wait here, unsubmitted, and take no room from others."""

from collections import deque

from llama_herd.tasks.client.batch.row_feed import RowJob

#: Most rows, and bytes of them, that wait here while others run.
MAX_PARKED = 16_384
MAX_PARKED_BYTES = 32 << 20


class ParkedRows:
    """Rows parked until a worker has their model. may_park: whether any are, for want of one."""

    def __init__(self, *, may_park: bool) -> None:
        #: The models that workers had when they were last counted; None: they were not yet.
        self.served: frozenset[str] | None = None
        self._may_park = may_park
        self._rows: deque[RowJob] = deque()
        self._num_bytes = 0
        self._ready: deque[RowJob] = deque()

    def __len__(self) -> int:
        return len(self._rows) + len(self._ready)

    def may_run(self, one: RowJob) -> bool:
        """Whether a row takes part in the window: not if other models have workers and its own has none."""
        return not (self._may_park and self.served) or self.is_served(one)

    def is_served(self, one: RowJob) -> bool:
        """Whether a worker has the row's model."""
        return self.served is not None and str(one.job.model) in self.served

    def park(self, one: RowJob) -> None:
        self._rows.append(one)
        self._num_bytes += one.job.num_prompt_bytes

    def note_served(self, models: frozenset[str]) -> None:
        """Workers were counted: rows that may run now are ready."""
        self.served = models
        rows = [*self._ready, *self._rows]
        self.clear()
        for one in rows:
            if self.may_run(one):
                self._ready.append(one)
            else:
                self.park(one)

    def take_ready(self) -> RowJob | None:
        """The next row that may run by now."""
        return self._ready.popleft() if self._ready else None

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_served(self) -> bool:
        """Whether a worker has the model of one of them; without any worker all are ready, to wait there."""
        return bool(self._ready and self.served)

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= MAX_PARKED or self._num_bytes >= MAX_PARKED_BYTES

    def clear(self) -> None:
        """Forget all rows: they are not done."""
        self._rows.clear()
        self._ready.clear()
        self._num_bytes = 0
