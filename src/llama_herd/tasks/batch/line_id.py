"""The first field of each line of a batch's output and error file: which row of which run it answers."""

import re

_LINE_START = re.compile(rb'\{"id":"batch_req_([a-z0-9]+)-([0-9]{1,12})"')


def line_id(run_id: str, row: int) -> str:
    """The id of a row of a run."""
    return f"batch_req_{run_id}-{row}"


def row_of(line: bytes, run_id: str) -> int | None:
    """The number of the row that a line answers; None if it is no line of this run."""
    found = _LINE_START.match(line)
    return int(found[2]) if found is not None and found[1] == run_id.encode() else None
