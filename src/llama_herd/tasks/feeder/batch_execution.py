"""Runs one batch, from where earlier feeders have left it, to its end."""

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Event as Flag, Lock
from time import monotonic, sleep

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FileLost
from llama_herd.tasks.batch.batch_progress import BatchProgress
from llama_herd.tasks.batch.batch_run import BatchRun, is_cancelled
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, LineStream, NumberedLine, read_lines
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow, parse_row
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.client.batch.begun_rows import BegunRows
from llama_herd.tasks.client.batch.row_job import forget_jobs
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.feeder.answer_parts import PART_KINDS, AnswerParts, PartKind, parts_place
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.batch_lease import BatchLease, Fenced
from llama_herd.tasks.feeder.feeder_limits import FeederLimits
from llama_herd.tasks.feeder.output_file import OutputFile, output_file_id, write_output_file
from llama_herd.tasks.feeder.row_runner import DRAIN_S, LeftToOthers, RowRunner
from llama_herd.tasks.ledger.batch_records import BatchOutcome, LineError
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.stored_files import StoredFiles
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.storage import Storage, StoragePlace

#: How long work goes on without a pause. The pause itself takes 50 microseconds.
TURN_S = 0.002


class YieldPoint:
    """Call it often: it lets other threads of the gateway run, and renews the lease."""

    def __init__(self, lease: BatchLease, leaving: Flag) -> None:
        self._lease = lease
        self._leaving = leaving
        self._paused_s = monotonic()

    def __call__(self) -> None:
        """Raises Fenced, LeftToOthers, RedisUnavailable."""
        if monotonic() - self._paused_s < TURN_S:
            return
        sleep(0)
        self._lease.renew_if_due()
        if self._leaving.is_set():
            raise LeftToOthers
        self._paused_s = monotonic()


#: Bytes of a line for each byte that a prompt may have: it may be escaped, and in arguments of a call twice.
_BYTES_OF_LINE = 8
#: Bytes of a line for all else. So the longest prompt that any setting allows has a line of at most 8 MiB.
_OTHER_BYTES = 1 << 18
#: Lines for which everything else waits so long that it gets its turn at once.
LONG_BYTES = 1 << 16
#: No other thread runs while Python parses. If several feeders did, the rest would wait for all of them.
_READING = Lock()


def max_line_bytes(max_prompt_bytes: int) -> int:
    """The most bytes of a line with a prompt of so many."""
    return min(MAX_LINE_BYTES, _BYTES_OF_LINE * max_prompt_bytes + _OTHER_BYTES)


def input_rows(file: LineStream, lease: BatchLease, max_prompt_bytes: int) -> Iterator[SourceRow]:
    """The rows of a file. Raises what a call of the lease raises.

    A long line is noted in the batch's record before it is parsed: if it ends this process, that names it.
    """
    max_bytes = max_line_bytes(max_prompt_bytes)
    lines, has_long = read_lines(file, max_bytes), False
    try:
        while (line := _next_line(lines)) is not None:
            if len(line.text or b"") >= LONG_BYTES:
                has_long = True
                lease.renew(line=line.number)
            row = _parsed(line, max_bytes)
            if row is not None:
                yield row
    finally:
        if has_long:
            _trim_heap()


def _trim_heap() -> None:
    """Give memory that is free to the system, which the allocator would keep; where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _next_line(lines: Iterator[NumberedLine | None]) -> NumberedLine | None:
    with _READING:
        return next(lines, None)  # a file has all its lines


def _parsed(line: NumberedLine, max_bytes: int) -> SourceRow | None:
    with _READING:
        begun_s = monotonic()
        row = parse_row(line, max_bytes)
        if len(line.text or b"") >= LONG_BYTES:
            sleep(monotonic() - begun_s)  # others get as much time as this took
        return row


#: Most errors that are told of an input.
MAX_ERRORS = 100
#: Most of what is told of a line: all of it is kept in Redis.
MAX_MESSAGE_CHARS = 400


@dataclass(slots=True)
class InputCheck:
    """The findings about an input: rows, errors, and the models that rows name."""

    num_rows: int = 0
    errors: list[LineError] = field(default_factory=list)
    models: set[str] = field(default_factory=set)

    def refuse(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        if len(self.errors) < MAX_ERRORS:
            told = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 3]}..."
            self.errors.append(LineError(code, told, line, param))


def check_input(
    rows: Iterable[SourceRow],
    reader: RequestReader,
    endpoint: str,
    max_rows: int,
    yield_turn: Callable[[], object],
) -> InputCheck:
    """Read every row. yield_turn: is called often."""
    found = InputCheck()
    for row in rows:
        yield_turn()
        found.num_rows += 1
        if found.num_rows > max_rows:
            message = f"the file has more than {max_rows:,} rows. Fix: split it, or HERD_GATEWAY_BATCH_ROWS"
            found.refuse("too_many_rows", message, row.line)
            return found
        _check_row(reader.read(row), endpoint, found)
    if not found.num_rows:
        found.refuse("empty_file", "the file has no rows")
    return found


def _check_row(row: BatchRow, endpoint: str, found: InputCheck) -> None:
    if row.failure is not None:
        found.refuse(row.failure.code, row.failure.message, row.index)
    elif row.tag.endpoint != endpoint:
        message = f"must be {endpoint}, the endpoint of the batch, got {row.tag.endpoint}"
        found.refuse(ErrorCode.INVALID_LINE, message, row.index, "url")
    elif row.job is not None and len(found.models) < 2:
        found.models.add(str(getattr(row.job, "model", None) or ""))


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
_FILE_LOST = LineError("file_lost", "the bytes of the input file, or of answers so far, are gone")


@dataclass(frozen=True)
class BatchExecution:
    """Runs one batch under this feeder's lease.

    leaving: set when it is to be left to another feeder. stalled: set while no row of it can run.
    """

    lease: BatchLease
    client: Client
    settings: Settings
    storage: Storage
    files: StoredFiles
    limits: FeederLimits
    leaving: Flag
    stalled: Flag
    count: BatchCount

    def run(self) -> None:
        """Run the batch to its end. Raises Fenced, LeftToOthers, and what Redis and the storage raise."""
        try:
            if self.lease.record.is_final:
                pass
            elif self.lease.record.vain_claims > MAX_VAIN_CLAIMS:
                self._break_off(self._in_vain)
            else:
                self._run_to_end()
        except FileLost:
            self._break_off(_FILE_LOST)
        except Fenced:
            if self.lease.is_over():  # and what was written since is nobody's
                self._delete_parts()
            raise
        self._delete_parts()
        self.lease.note_cleaned()

    def _delete_parts(self) -> None:
        self.storage.delete(parts_place(self.files.tenant, self.lease.record))

    def _run_to_end(self) -> None:
        if not self.lease.has_started and self.lease.state == "cancelling":
            self.lease.end("cancelled")
        elif not self.lease.has_started and (errors := self._check_and_start()):
            self._fail(errors)
        else:
            with AnswerParts(self.storage, self.files.tenant, self.lease) as parts:
                outcome = self.lease.record.outcome or self._run_rows(parts)
                self._finish(parts, outcome)

    def _check_and_start(self) -> Sequence[LineError]:
        """Let the rows run if all are valid and within the quota. Returns why not; empty if they run."""
        endpoint, max_rows = self.lease.record.request.endpoint, self.limits.max_rows
        with self._rows() as rows:
            found = check_input(rows, self._reader(), endpoint, max_rows, self._yield_point())
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
        progress = BatchProgress(record.run_id, record.input_name, num_rows, parts.num_done, parts.num_failed)
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            batch = self.client.batch(left, run_id=record.run_id)
            run = BatchRun(batch.window, progress, max_errors=num_rows)
            runner = RowRunner(
                *(batch, run, parts, self.lease, self.client),
                flush_s=self.storage.flush_s,
                leaving=self.leaving,
                stalled=self.stalled,
                count=self.count,
            )
            runner.run()
        outcome = self._early_outcome() if batch.window.is_cancelled else "completed"
        runner.report("done" if outcome == "completed" else "cancelled")
        return outcome

    def _forget_answered_jobs(self, parts: AnswerParts) -> None:
        """Let Redis forget jobs whose answers were written by a feeder that was killed before it did this."""
        ledger, rows = Ledger.from_settings(self.settings), iter(parts.last_rows)
        yield_turn = self._yield_point()
        while lot := list(islice(rows, _LOT)):
            self.lease.run_dialogue(forget_jobs(ledger, self.lease.record.run_id, lot))
            yield_turn()

    def _end_begun_jobs(self, parts: AnswerParts) -> None:
        """End the jobs that an earlier feeder has left, and write the answers of those that had ended."""
        run_id, yield_turn = self.lease.record.run_id, self._yield_point()
        self.client.cancel_jobs(run_id=run_id)
        give_up_s = monotonic() + DRAIN_S
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            begun = BegunRows(ClientCore(self.settings), left, run_id=run_id, size=_LOT)
            while not begun.is_over and monotonic() < give_up_s:
                items = self.lease.run_dialogue(begun.round(monotonic()))
                parts.write([one for one in items if not is_cancelled(one)])
                yield_turn()
                self.leaving.wait(begun.pause_s)

    def _early_outcome(self) -> BatchOutcome:
        return "cancelled" if self.lease.state == "cancelling" else "expired"

    def _finish(self, parts: AnswerParts, outcome: BatchOutcome) -> None:
        """Give every row its line, make the files of the lines, and end the batch."""
        self.lease.renew("finalizing", outcome=outcome)
        if outcome != "completed":
            self._write_undone(parts, _UNDONE_FAILURES[outcome])
        files = {kind: self._write_file(parts, kind) for kind in PART_KINDS if parts.num_lines(kind)}
        self.lease.end(
            outcome,
            [one.file for one in files.values()],
            num_done=parts.num_done,
            num_failed=parts.num_failed,
            prompt_tokens=sum(one.prompt_tokens for one in files.values()),
            completion_tokens=sum(one.completion_tokens for one in files.values()),
            output_file_id=files["output"].file.id if "output" in files else "",
            error_file_id=files["errors"].file.id if "errors" in files else "",
        )

    def _write_undone(self, parts: AnswerParts, why: Failure) -> None:
        with self._rows() as rows:
            left = self._reader().rows_left(rows, parts.done)
            items = (BatchItem(row, rejection=why) for row in left if row is not None)
            yield_turn = self._yield_point()
            while lot := list(islice(items, _LOT)):
                parts.write(lot)
                yield_turn()

    def _write_file(self, parts: AnswerParts, kind: PartKind) -> OutputFile:
        place = StoragePlace(self.files.tenant, output_file_id(parts, kind))
        self.lease.run(self.files.begin_upload(place.name))
        return write_output_file(parts, kind, self.storage, place, self._yield_point())

    @property
    def _in_vain(self) -> LineError:
        """Why a batch ends that stops one gateway after the other, and the last long line they began."""
        message = (
            f"{MAX_VAIN_CLAIMS} gateways in turn took the batch, and ended or failed before they got on with "
            "it. Fix: look for what is odd in the input, and split it; the gateways' logs say more"
        )
        return LineError("batch_poison", message, self.lease.record.line or None)

    def _break_off(self, error: LineError) -> None:
        """End a batch, which may have begun, without its answers."""
        self.client.cancel_jobs(run_id=self.lease.record.run_id)
        self._fail([error])

    def _fail(self, errors: Sequence[LineError]) -> None:
        self.lease.end("failed", errors=json.dumps(errors))

    @contextmanager
    def _rows(self) -> Iterator[Iterator[SourceRow]]:
        """The rows of the input. Raises FileLost."""
        place = StoragePlace(self.files.tenant, self.lease.record.request.input_file_id)
        with self.storage.read(place) as file:
            yield input_rows(file, self.lease, self.settings.max_prompt_bytes)

    def _reader(self) -> RequestReader:
        return RequestReader(self.settings, RowOptions(), self.lease.record.run_id)

    def _yield_point(self) -> YieldPoint:
        return YieldPoint(self.lease, self.leaving)
