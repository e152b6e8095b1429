"""Runs one batch, from where earlier feeders have left it, to its end."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from time import monotonic

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FileLost
from llama_herd.tasks.batch.batch_run import BatchLeft, BatchRun, is_cancelled
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_progress import BatchProgress
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.begun_rows import BegunRows
from llama_herd.tasks.client.batch.row_feed import forget_jobs
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.feeder.answer_parts import PART_KINDS, AnswerParts, parts_place
from llama_herd.tasks.feeder.batch_input import check_input, input_rows, max_line_bytes
from llama_herd.tasks.feeder.batch_lease import BatchLease, FeederLimits, Fenced
from llama_herd.tasks.ledger.batch_records import BatchOutcome, LineError
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.storage import Storage, StoragePlace


class BatchCount:
    """Counts batches, which run in threads of their own, since the start. Any thread may read it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.num_under_way = 0
        self.num_ended: Mapping[str, int] = {}  # by state
        self.num_rows: Mapping[str, int] = {"completed": 0, "failed": 0}

    def begin(self) -> None:
        with self._lock:
            self.num_under_way += 1

    def leave(self) -> None:
        """A batch is not run here any more, however it stands."""
        with self._lock:
            self.num_under_way -= 1

    def end(self, state: str) -> None:
        """A batch has ended here."""
        with self._lock:
            self.num_ended = {**self.num_ended, state: self.num_ended.get(state, 0) + 1}

    def rows(self, num_completed: int, num_failed: int) -> None:
        with self._lock:
            before = self.num_rows
            done, failed = before["completed"] + num_completed, before["failed"] + num_failed
            self.num_rows = {"completed": done, "failed": failed}


#: How long the jobs of a batch that ends early may take to end.
DRAIN_S = 30.0
#: After so long without an answer feeders that die are no longer taken to die of the batch: it only waits.
HARMLESS_S = 30.0


@dataclass
class LeasedRows:
    """Owns the run of a batch's rows: as long as its lease lasts, and no other batch gets the turn."""

    lease: BatchLease
    parts: AnswerParts
    count: BatchCount
    flush_s: float
    begun_s: float = field(default_factory=monotonic)

    def attend(self, run: BatchRun) -> None:
        """Renew the lease, and end early what is to. Raises BatchLeft, Fenced, RedisUnavailable."""
        if self.lease.leaving.is_set():
            raise BatchLeft
        if self.parts.has_own_lines or monotonic() - self.begun_s >= HARMLESS_S:
            self.lease.get_on()
        done = self.parts.done
        self.lease.renew_if_due(num_done=done.num_answered, num_failed=done.num_failed)
        if run.is_asked_to_end and not self.lease.is_to_end:
            self.lease.run(self.lease.records.cancel(self.lease.record.id))  # as a client does
            self.lease.renew()  # which tells that it is being cancelled
        if self.lease.is_to_end:
            run.cancel(DRAIN_S)
        self.lease.unserved = run.window.without_worker
        self.lease.waits = run.window.is_stalled

    def write(self, items: Sequence[BatchItem]) -> None:
        """Raises StorageUnavailable."""
        self.parts.write(items)
        num_failed = sum(one.failure is not None for one in items)
        self.count.rows(len(items) - num_failed, num_failed)

    def show(self, status: BatchStatus) -> None:
        """Nobody watches here: the record tells of it, and the report that each run makes."""


#: Lines that are made, and written, together.
_LOT = 1000

#: What the line of a row says that was not done when its batch ended.
_UNDONE_FAILURES = {
    "expired": Failure(
        code=ErrorCode.BATCH_EXPIRED,
        message="the batch's completion_window was over before this row was done",
    ),
    "cancelled": Failure(
        code=ErrorCode.BATCH_CANCELLED, message="the batch was cancelled before this row was done"
    ),
}
#: Feeders in turn that a batch may stop, by the end of their process or by an error that no retry mends.
MAX_VAIN_CLAIMS = 5
_IN_VAIN = (
    f"{MAX_VAIN_CLAIMS} gateways in turn took the batch, and ended or failed before they got on with "
    "it. Fix: look for what is odd in the input, and split it; the gateways' logs say more"
)
_FILE_LOST = LineError("file_lost", "the bytes of the input file, or of answers so far, are gone")


@dataclass(frozen=True)
class BatchExecution:
    """Runs one batch under this feeder's lease."""

    lease: BatchLease
    client: Client
    settings: Settings
    storage: Storage
    limits: FeederLimits
    count: BatchCount

    def run(self) -> None:
        """Run the batch to its end. Raises Fenced, BatchLeft, and what Redis and the storage raise."""
        try:
            if not self.lease.record.is_final:
                self._run_to_end()
        except FileLost:
            self._break_off(_FILE_LOST)
        except Fenced:
            record = self.lease.run(self.lease.records.get(self.lease.record.id))
            if record is None or record.is_final:  # and what was written since is nobody's
                self._delete_parts()
            raise
        self._delete_parts()
        self.lease.run(self.lease.records.note_cleaned(self.lease.record.id))

    def _delete_parts(self) -> None:
        self.storage.delete(parts_place(self.settings.tenant, self.lease.record))

    def _run_to_end(self) -> None:
        if self.lease.record.vain_claims > MAX_VAIN_CLAIMS:
            # It stops one gateway after the other: name the last long line that they have begun.
            self._break_off(LineError("batch_poison", _IN_VAIN, self.lease.record.line or None))
        elif not self.lease.has_started and self.lease.state == "cancelling":
            self.lease.end("cancelled")
        elif not self.lease.has_started and (errors := self._check_and_start()):
            self._fail(errors)
        else:
            with AnswerParts(self.storage, self.settings.tenant, self.lease) as parts:
                outcome = self.lease.record.outcome or self._run_rows(parts)
                self._finish(parts, outcome)

    def _check_and_start(self) -> Sequence[LineError]:
        """Let the rows run if all are valid and within the quota. Returns why not; empty if they run."""
        endpoint, max_rows = self.lease.record.request.endpoint, self.limits.max_rows
        with self._rows() as rows:
            found = check_input(rows, self._reader(), endpoint, max_rows, self.lease.yield_turn)
        if found.errors:
            return found.errors
        model = found.models.pop() if len(found.models) == 1 else ""
        full = self.lease.start(found.num_rows, model or self.settings.default_model, self.limits.rows)
        if full is None:
            return ()
        message = (
            f"{found.num_rows:,} rows more than the {full.has:,} that are under way for this {full.whose} "
            f"are too many: the limit is {full.limit:,}. Fix: wait for other batches, or send fewer rows"
        )
        return [LineError("too_many_rows_under_way", message)]

    def _run_rows(self, parts: AnswerParts) -> BatchOutcome:
        """Run the rows that have no line. Returns how the batch is to end."""
        record = self.lease.record
        self._forget_answered_jobs(parts)
        if self.lease.is_to_end:
            self._end_begun_jobs(parts)
            return self._early_outcome()
        num_rows = self.lease.num_rows
        owner = LeasedRows(self.lease, parts, self.count, self.storage.flush_s)
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            batch = self.client.batch(left, run_id=record.run_id)
            progress = BatchProgress(record.run_id, record.input_name, num_rows, parts.done)
            state = BatchRun(self.client, batch, progress, owner, max_errors=num_rows).run()
        return self._early_outcome() if state == "cancelled" else "completed"

    def _forget_answered_jobs(self, parts: AnswerParts) -> None:
        """Let Redis forget jobs whose answers were written by a feeder that was killed before it did this."""
        ledger, rows = Ledger.from_settings(self.settings), iter(parts.last_rows)
        while lot := list(islice(rows, _LOT)):
            self.lease.run(forget_jobs(ledger, self.lease.record.run_id, lot))
            self.lease.yield_turn()

    def _end_begun_jobs(self, parts: AnswerParts) -> None:
        """End the jobs that an earlier feeder has left, and write the answers of those that had ended."""
        run_id = self.lease.record.run_id
        self.client.cancel_jobs(run_id=run_id)
        give_up_s = monotonic() + DRAIN_S
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            begun = BegunRows(ClientCore(self.settings), left, run_id=run_id, size=_LOT)
            while not begun.is_over and monotonic() < give_up_s:
                items = self.lease.run(begun.round(monotonic()))
                parts.write([one for one in items if not is_cancelled(one)])
                self.lease.yield_turn()
                self.lease.leaving.wait(begun.pause_s)

    def _early_outcome(self) -> BatchOutcome:
        return "cancelled" if self.lease.state == "cancelling" else "expired"

    def _finish(self, parts: AnswerParts, outcome: BatchOutcome) -> None:
        """Give every row its line, make the files of the lines, and end the batch."""
        self.lease.renew("finalizing", outcome=outcome)
        if self.lease.state == "cancelling":  # a client was told so, before there was an outcome
            outcome = "cancelled"
        if outcome != "completed":
            self._write_undone(parts, _UNDONE_FAILURES[outcome])
        files = {kind: parts.write_file(kind) for kind in PART_KINDS if parts.num_lines(kind)}
        self.lease.end(
            outcome,
            list(files.values()),
            num_done=parts.done.num_answered,
            num_failed=parts.done.num_failed,
            prompt_tokens=parts.prompt_tokens,
            completion_tokens=parts.completion_tokens,
            output_file_id=files["output"].id if "output" in files else "",
            error_file_id=files["errors"].id if "errors" in files else "",
        )

    def _write_undone(self, parts: AnswerParts, why: Failure) -> None:
        """Give the rows that were not done their lines."""
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            items = (BatchItem(row, rejection=why) for row in left if row is not None)
            while lot := list(islice(items, _LOT)):
                parts.write(lot)
                self.lease.yield_turn()

    def _break_off(self, error: LineError) -> None:
        """End a batch, which may have begun, without its answers."""
        self.client.cancel_jobs(run_id=self.lease.record.run_id)
        self._fail([error])

    def _fail(self, errors: Sequence[LineError]) -> None:
        self.lease.end("failed", errors=json.dumps(errors))

    @contextmanager
    def _rows(self) -> Iterator[Iterator[SourceRow]]:
        """The rows of the input. Raises FileLost."""
        place = StoragePlace(self.settings.tenant, self.lease.record.request.input_file_id)
        with self.storage.read(place) as file:
            yield input_rows(file, self.lease, max_line_bytes(self.settings.max_prompt_bytes))

    def _reader(self) -> RequestReader:
        return RequestReader(self.settings, RowOptions(), self.lease.record.run_id)
