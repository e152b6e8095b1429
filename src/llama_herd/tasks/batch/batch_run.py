"""A run of a batch: which items become answers, when it stops early, what it reports. No connection."""

from collections.abc import Iterable

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.batch.batch_progress import BatchProgress
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.protocol.batch_status import BatchStatus

#: Most models without a worker that a status names.
MAX_NAMED = 5
#: So many failures and not one answer since the start end it, unless `max_errors` says how many may be.
HOPELESS_ROWS = 50


def is_cancelled(item: BatchItem) -> bool:
    """Whether its job was cancelled, so that it has no answer."""
    return item.failure is not None and item.failure.code == ErrorCode.CANCELLED


class BatchRun:
    """Takes the items of each round of the window, and says which of them to write before the next round.

    The next round lets Redis forget the jobs of these items. So who writes them first loses nothing, and
    repeats nothing, when it is killed at any moment.
    """

    def __init__(
        self, window: BatchWindow, progress: BatchProgress, *, max_errors: int | None = None
    ) -> None:
        """progress: it knows the rows that earlier starts have finished."""
        self.progress = progress
        self._window = window
        self._max_errors = max_errors
        self._has_cancelled = False
        self._stop_if_due()

    @property
    def stop_reason(self) -> str:
        """The reason to take no more rows: too many have failed, or all of many; empty: there is none."""
        progress = self.progress
        if self._max_errors is not None:
            has_too_many = progress.num_failed > self._max_errors
            return f"more than {self._max_errors} rows failed" if has_too_many else ""
        if progress.num_here >= HOPELESS_ROWS and not progress.num_done_here:
            return f"all of the first {progress.num_here:,} rows failed"
        return ""

    def answers(self, items: Iterable[BatchItem]) -> list[BatchItem]:
        """Count the items of a round, and return those to write; take no more rows once it has to stop.

        Rows that were cancelled with the batch get no answer, so a later run does them; in order, also those
        behind them.
        """
        kept = list(self._not_cancelled(items)) if self._window.is_cancelled else list(items)
        self.progress.count(kept)
        self._stop_if_due()
        return kept

    def _stop_if_due(self) -> None:
        if self.stop_reason:
            self._window.stop()

    def _not_cancelled(self, items: Iterable[BatchItem]) -> Iterable[BatchItem]:
        for item in items:
            was_cancelled = is_cancelled(item)
            self._has_cancelled |= was_cancelled
            if not (was_cancelled or (self._has_cancelled and self._window.is_in_order)):
                yield item

    def status(self, state: str) -> BatchStatus:
        """The batch's status to report now; `state` as in BatchStatus."""
        unserved = ", ".join(sorted(self._window.without_worker)[:MAX_NAMED])
        found = self.progress.status(state, self._window.num_under_way)
        return found.model_copy(update={"unserved": unserved})
