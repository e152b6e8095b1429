"""How many batches and rows a gateway has run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Since the start; frozen, so that any thread may read it."""

    num_under_way: int = 0
    num_ended: Mapping[str, int] = field(default_factory=dict)  # by state
    num_rows: Mapping[str, int] = field(default_factory=dict)  # completed and failed


class BatchCount:
    """Counts batches, which run in threads of their own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_under_way = 0
        self._ended: Counter[str] = Counter()
        self._rows = Counter(completed=0, failed=0)

    def begin(self) -> None:
        with self._lock:
            self._num_under_way += 1

    def leave(self) -> None:
        """A batch is not run here any more, however it stands."""
        with self._lock:
            self._num_under_way -= 1

    def end(self, state: str) -> None:
        """A batch has ended here."""
        with self._lock:
            self._ended[state] += 1

    def rows(self, num_completed: int, num_failed: int) -> None:
        with self._lock:
            self._rows.update(completed=num_completed, failed=num_failed)

    @property
    def figures(self) -> BatchFigures:
        with self._lock:
            return BatchFigures(self._num_under_way, dict(self._ended), dict(self._rows))
