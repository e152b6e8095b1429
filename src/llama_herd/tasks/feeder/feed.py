"""One batch, from where earlier feeders have left it to its end."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event as Flag
from time import monotonic

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FileLost
from llama_herd.tasks.batch.figures import Figures
from llama_herd.tasks.batch.json_row import read_row
from llama_herd.tasks.batch.lines import read_lines
from llama_herd.tasks.batch.request import RequestReader
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.run import BatchRun, is_cancelled
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.begun_rows import BegunRows
from llama_herd.tasks.client.batch.row_job import forget_jobs
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.events import Failure
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.breath import Breath
from llama_herd.tasks.feeder.feeding import DRAIN_S, Feeding
from llama_herd.tasks.feeder.input_check import check_input
from llama_herd.tasks.feeder.joining import Joined, file_id, join
from llama_herd.tasks.feeder.lease import Fenced, Lease
from llama_herd.tasks.feeder.limits import Limits
from llama_herd.tasks.feeder.parts import KINDS, Kind, Parts, parts_place
from llama_herd.tasks.ledger.batch_record import BatchOutcome, LineError
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.stored_files import StoredFiles
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.storage import Place, Storage

#: Lines that are made, and written, together.
_LOT = 1000

#: What the line of a row says that was not done when its batch ended.
_WHY = {
    "expired": Failure(
        code=ErrorCode.BATCH_EXPIRED,
        message="the batch's completion_window was over before this row was done",
    ),
    "cancelled": Failure(
        code=ErrorCode.BATCH_CANCELLED, message="the batch was cancelled before this row was done"
    ),
}
_FILE_LOST = LineError("file_lost", "the bytes of the input file, or of answers so far, are gone")


@dataclass(frozen=True)
class Feed:
    """One batch under this feeder's lease. leaving: set when it is to be left to another feeder."""

    lease: Lease
    client: Client
    settings: Settings
    storage: Storage
    files: StoredFiles
    limits: Limits
    leaving: Flag
    count: BatchCount

    def run(self) -> None:
        """Run the batch to its end. Raises Fenced, Left, and what Redis and the storage raise."""
        try:
            if not self.lease.record.is_final:
                self._run_to_end()
        except FileLost:
            self.client.cancel_jobs(run_id=self.lease.record.run_id)
            self._fail([_FILE_LOST])
        except Fenced:
            if self.lease.is_over():  # and what was written since is nobody's
                self._delete_parts()
            raise
        self._delete_parts()
        self.lease.cleaned()

    def _delete_parts(self) -> None:
        self.storage.delete(parts_place(self.files.tenant, self.lease.record))

    def _run_to_end(self) -> None:
        if not self.lease.has_started and self.lease.state == "cancelling":
            self.lease.end("cancelled")
        elif not self.lease.has_started and (errors := self._start()):
            self._fail(errors)
        else:
            with Parts(self.storage, self.files.tenant, self.lease) as parts:
                outcome = self.lease.record.outcome or self._feed(parts)
                self._close(parts, outcome)

    def _start(self) -> Sequence[LineError]:
        """Let the rows run if all of them are valid, and if there may be so many. Returns why not."""
        endpoint, max_rows = self.lease.record.request.endpoint, self.limits.max_rows
        with self._rows() as rows:
            found = check_input(rows, self._reader(), endpoint, max_rows, self._breath())
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

    def _feed(self, parts: Parts) -> BatchOutcome:
        """Run the rows that have no line. Returns how the batch is to end."""
        record = self.lease.record
        self._forget_written(parts)
        if self.lease.is_to_end:
            self._write_ended(parts)
            return self._outcome()
        num_rows = self.lease.num_rows
        figures = Figures(record.run_id, record.input_name, num_rows, parts.num_done, parts.num_failed)
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            batch = self.client.batch(left, run_id=record.run_id)
            run = BatchRun(batch.window, figures, max_errors=num_rows)
            feeding = Feeding(
                *(batch, run, parts, self.lease, self.client),
                flush_s=self.storage.flush_s,
                leaving=self.leaving,
                count=self.count,
            )
            feeding.run()
        outcome = self._outcome() if batch.window.is_cancelled else "completed"
        feeding.report("done" if outcome == "completed" else "cancelled")
        return outcome

    def _forget_written(self, parts: Parts) -> None:
        """Let Redis forget jobs whose answers a feeder had written that was killed before it did this."""
        ledger, rows, breathe = Ledger.from_settings(self.settings), iter(parts.last_rows), self._breath()
        while lot := list(islice(rows, _LOT)):
            self.lease.talk(forget_jobs(ledger, self.lease.record.run_id, lot))
            breathe()

    def _write_ended(self, parts: Parts) -> None:
        """End the jobs that an earlier feeder has left, and write the answers of those that had ended."""
        run_id, breathe = self.lease.record.run_id, self._breath()
        self.client.cancel_jobs(run_id=run_id)
        give_up_s = monotonic() + DRAIN_S
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            begun = BegunRows(ClientCore(self.settings), left, run_id=run_id, size=_LOT)
            while not begun.is_over and monotonic() < give_up_s:
                items = self.lease.talk(begun.round(monotonic()))
                parts.write([one for one in items if not is_cancelled(one)])
                breathe()
                self.leaving.wait(begun.pause_s)

    def _outcome(self) -> BatchOutcome:
        return "cancelled" if self.lease.state == "cancelling" else "expired"

    def _close(self, parts: Parts, outcome: BatchOutcome) -> None:
        """Give every row its line, make the files of the lines, and end the batch."""
        self.lease.note("finalizing", outcome=outcome)
        if outcome != "completed":
            self._write_undone(parts, _WHY[outcome])
        files = {kind: self._join(parts, kind) for kind in KINDS if parts.num_lines(kind)}
        self.lease.end(
            outcome,
            [joined.file for joined in files.values()],
            num_done=parts.num_done,
            num_failed=parts.num_failed,
            prompt_tokens=sum(joined.prompt_tokens for joined in files.values()),
            completion_tokens=sum(joined.completion_tokens for joined in files.values()),
            output_file_id=files["output"].file.id if "output" in files else "",
            error_file_id=files["errors"].file.id if "errors" in files else "",
        )

    def _write_undone(self, parts: Parts, why: Failure) -> None:
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            items = (BatchItem(row, rejection=why) for row in left if row is not None)
            breathe = self._breath()
            while lot := list(islice(items, _LOT)):
                parts.write(lot)
                breathe()

    def _join(self, parts: Parts, kind: Kind) -> Joined:
        place = Place(self.files.tenant, file_id(parts, kind))
        self.lease.run(self.files.begin(place.name))
        return join(parts, kind, self.storage, place, self._breath())

    def _fail(self, errors: Sequence[LineError]) -> None:
        self.lease.end("failed", errors=json.dumps(errors))

    @contextmanager
    def _rows(self) -> Iterator[Iterator[SourceRow]]:
        """The rows of the input. Raises FileLost."""
        place = Place(self.files.tenant, self.lease.record.request.input_file_id)
        with self.storage.read(place) as file:
            yield (row for row in map(read_row, read_lines(file)) if row is not None)

    def _reader(self) -> RequestReader:
        return RequestReader(self.settings, RowOptions(), self.lease.record.run_id)

    def _breath(self) -> Breath:
        return Breath(self.lease, self.leaving)
