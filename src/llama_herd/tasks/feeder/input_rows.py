"""The rows of a batch's input, as a feeder reads them beside all else that its process does."""

from collections.abc import Iterator
from threading import Lock
from time import monotonic, sleep

from llama_herd.heap import trim_heap
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, LineStream, NumberedLine, read_lines
from llama_herd.tasks.batch.source_row import SourceRow, parse_row
from llama_herd.tasks.feeder.batch_lease import BatchLease

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
            trim_heap()


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
