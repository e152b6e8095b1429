"""The driver of a batch: its rows go through the queue, its answers to its owner."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Protocol

from llama_herd.error_code import ErrorCode
from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.client.batch.batch_progress import BatchProgress
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.client_batch import ClientBatch
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.batch_status import BatchStatus

#: How often a batch is reported.
REPORT_S = 1.0
#: Pause before Redis is tried again.
RETRY_S = 0.5
#: Most items that wait to be written.
MAX_UNWRITTEN = 4096
#: Most models without a worker that a status names.
MAX_NAMED = 5
#: So many failures and not one answer since the start end it, unless `max_errors` says how many may be.
HOPELESS_ROWS = 50


class BatchLeft(Exception):
    """The run ends before its batch. Jobs go on, and whoever runs the batch next finds them."""


class BatchOwner(Protocol):
    """Who runs a batch: it keeps the answers, and decides how long the run goes on.

    flush_s: how long items are gathered for one `write`.
    """

    flush_s: float

    def attend(self, run: "BatchRun") -> None:
        """Look after the run before each round, also while Redis is away. May cancel it, or raise BatchLeft.

        If it raises RedisUnavailable, it is called again.
        """

    def write(self, items: Sequence[BatchItem]) -> None:
        """Write what became of rows. They are safe when it returns."""

    def show(self, status: BatchStatus) -> None:
        """Show the status; called about once a second, and at the end."""


def is_cancelled(item: BatchItem) -> bool:
    """Whether its job was cancelled, so that it has no answer."""
    return item.failure is not None and item.failure.code == ErrorCode.CANCELLED


@dataclass(eq=False)
class BatchRun:
    """Runs the rows that are left, until all are answered, or the batch is to end early.

    Items are written before the round after them, which lets Redis forget their jobs. So a kill at any moment
    loses nothing and repeats nothing.

    batch: of the rows without an answer. progress: it knows of the others.
    outage: why the last round came to nothing; None: it did not. is_asked_to_end: by `Client.end_batch`, as
    of the last report. has_own_worker: one was started for this batch, and is about to be up.
    """

    client: Client
    batch: ClientBatch
    progress: BatchProgress
    owner: BatchOwner
    max_errors: int | None = None
    has_own_worker: bool = False
    outage: RedisUnavailable | None = None
    is_asked_to_end: bool = False
    _has_cancelled: bool = field(init=False, default=False)
    _unwritten: list[BatchItem] = field(init=False, default_factory=list)
    _flushed_s: float = field(init=False, default_factory=monotonic)
    _report_at_s: float = field(init=False, default=0.0)
    _give_up_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.window = self.batch.window
        self._stop_if_due()

    def run(self) -> str:
        """Run the rows, and return how it ended: done, stopped or cancelled.

        Waits for a Redis that is away. Raises BatchLeft, and what the owner raises. A job that does not end
        in time after `cancel` is given up; what became of the others is written before.
        """
        while not (self.window.is_over or self._is_given_up):
            try:
                self.owner.attend(self)
                self._take(self.batch.poll(forgets=not self._unwritten))
                self.outage = None
            except RedisUnavailable as error:
                self.outage = error
                sleep(RETRY_S)
            if monotonic() >= self._report_at_s:
                self._report_at_s = monotonic() + REPORT_S
                self.report("running")
        self._flush()
        state = "cancelled" if self.window.is_cancelled else "stopped" if self.stop_reason else "done"
        self.report(state)
        return state

    def cancel(self, drain_s: float = float("inf")) -> None:
        """Take no more rows, cancel the jobs under way, and wait so long for their ends.

        Raises RedisUnavailable; then the next rounds cancel them. Asking once more changes nothing.
        """
        if self._give_up_s is None:
            self._give_up_s = monotonic() + drain_s
            self.batch.cancel()

    @property
    def _is_given_up(self) -> bool:
        """Whether jobs that were cancelled have had their time."""
        is_late = self._give_up_s is not None and monotonic() >= self._give_up_s
        return is_late and not self.window.must_cancel

    def _take(self, items: Sequence[BatchItem]) -> None:
        """Count the items of a round, and write when it is time; take no more rows once it has to stop."""
        kept = list(self._not_cancelled(items)) if self.window.is_cancelled else items
        self.progress.count(kept)
        self._stop_if_due()
        self._unwritten += kept
        if len(self._unwritten) >= MAX_UNWRITTEN or monotonic() - self._flushed_s >= self.owner.flush_s:
            self._flush()

    def _flush(self) -> None:
        self.owner.write(self._unwritten)
        self._unwritten = []
        self._flushed_s = monotonic()

    def _not_cancelled(self, items: Iterable[BatchItem]) -> Iterator[BatchItem]:
        """All but rows that were cancelled with the batch, so that a later run does them.

        In order they are followed by none: the rows behind them are done later, too.
        """
        for item in items:
            was_cancelled = is_cancelled(item)
            self._has_cancelled |= was_cancelled
            if not (was_cancelled or (self._has_cancelled and self.window.is_in_order)):
                yield item

    @property
    def stop_reason(self) -> str:
        """The reason to take no more rows: too many have failed, or all of many; empty: there is none."""
        progress = self.progress
        if self.max_errors is not None:
            has_too_many = progress.num_failed > self.max_errors
            return f"the failed rows are more than {self.max_errors:,}" if has_too_many else ""
        if progress.num_here >= HOPELESS_ROWS and not progress.num_done_here:
            return f"all of the first {progress.num_here:,} rows failed"
        return ""

    def _stop_if_due(self) -> None:
        if self.stop_reason:
            self.window.stop()

    def report(self, state: str) -> None:
        """Show the batch's status, and let `Client.batches` show it; `state` as in BatchStatus."""
        status = self.status(state)
        self.owner.show(status)
        if self.outage is None:
            with suppress(RedisUnavailable):
                self.is_asked_to_end = self.client.report_batch(status)

    def status(self, state: str) -> BatchStatus:
        """The batch's status now."""
        # While Redis refuses jobs it may refuse the reports of workers, too.
        is_known = not (self.has_own_worker or self.window.refusal)
        models = self.window.without_worker if is_known else ()
        unserved = ", ".join(sorted(models)[:MAX_NAMED])
        found = self.progress.status(state, self.window.num_under_way)
        return found.model_copy(update={"unserved": unserved})
