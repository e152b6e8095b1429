"""The input of a batch that came over HTTP: its rows, and whether all of them may run."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic, sleep

from llama_herd.counted import counted
from llama_herd.error_code import ErrorCode
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import (
    MAX_LINE_BYTES,
    LineStream,
    NumberedLine,
    SourceRow,
    parse_row,
    read_lines,
)
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.feeder.batch_lease import BatchLease
from llama_herd.tasks.ledger.batch_records import LineError

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


def input_rows(file: LineStream, lease: BatchLease, max_bytes: int) -> Iterator[SourceRow]:
    """The rows of a file. Raises what a call of the lease raises.

    A long line is noted in the batch's record before it is parsed: if it ends this process, that names it.
    """
    lines, has_long = read_lines(file, max_bytes), False
    try:
        while (line := _next_line(lines)) is not None:
            if len(line.text or b"") >= LONG_BYTES:
                has_long = True
                lease.renew(line=line.number)
            if (row := _parsed(line, max_bytes)) is not None:
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

    def note(self, read: BatchRow, endpoint: str) -> None:
        """Note what a row asks for, or why that cannot be. endpoint: the batch's."""
        if read.failure is not None:
            self.refuse(read.failure.code, read.failure.message, read.index)
        elif read.tag.endpoint != endpoint:
            message = f"must be {endpoint}, the endpoint of the batch, got {read.tag.endpoint}"
            self.refuse(ErrorCode.INVALID_LINE, message, read.index, "url")
        elif read.job is not None and len(self.models) < 2:
            self.models.add(str(getattr(read.job, "model", None) or ""))


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
            most = counted(max_rows, "row")
            message = f"the file has more than {most}. Fix: split it, or HERD_GATEWAY_BATCH_ROWS"
            found.refuse("too_many_rows", message, row.line)
            return found
        found.note(reader.read(row), endpoint)
    if not found.num_rows:
        found.refuse("empty_file", "the file has no rows")
    return found
