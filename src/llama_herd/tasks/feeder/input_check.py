"""Checks the input of a batch before any of its rows runs: all of them are valid, or none runs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.ledger.batch_record import LineError

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
