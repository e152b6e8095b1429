"""Where a batch's rows come from: JSON lines, plain or packed, or columns of a table."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol

from llama_herd.errors import BadInput
from llama_herd.worker.batch.lines import MAX_LINE_BYTES, read_lines

STDIN = "-"

#: Rows of a Parquet file that are in memory at once.
_PARQUET_ROWS = 256


class SourceRow(NamedTuple):
    """A row as it was read: its fields, or what is wrong with it. `line` is its number for people."""

    line: int
    fields: Mapping[str, Any] | None
    complaint: str = ""


class Source(Protocol):
    """Something with rows. `num_rows` reads it once, and is None where it can be read only once."""

    def rows(self) -> Iterator[SourceRow]: ...

    def num_rows(self) -> int | None: ...


@dataclass(frozen=True)
class Columns:
    """Which columns of a table make a row."""

    prompt: str = "prompt"
    id: str | None = None

    def check(self, names: list[str], path: Path) -> None:
        """Raise BadInput when the table lacks one."""
        missing = [name for name in (self.prompt, self.id) if name is not None and name not in names]
        if missing:
            raise BadInput(
                f"{path} has no column {missing[0]}, but {', '.join(names) or 'none'}. "
                "Fix: name it by --prompt-column or --id-column"
            )

    def fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the table as the fields of a line."""
        fields = {"prompt": row[self.prompt]}
        return fields if self.id is None else fields | {"custom_id": str(row[self.id])}


def open_source(name: str, columns: Columns) -> Source:
    """The rows of a file, by the end of its name; - is standard input. Raises BadInput."""
    path = Path(name)
    if name != STDIN and not path.is_file():
        raise BadInput(f"{path}: no such file")
    match Path(name.removesuffix(".gz")).suffix:
        case ".csv":
            return CsvTable(path, columns)
        case ".parquet":
            return ParquetTable(path, columns)
        case _:
            return JsonLines(name)


@dataclass(frozen=True)
class JsonLines:
    """A JSON object a line."""

    name: str

    def rows(self) -> Iterator[SourceRow]:
        with _open(self.name) as stream:
            for line in read_lines(stream):
                yield _read_object(line.number, line.text)

    def num_rows(self) -> int | None:
        if self.name == STDIN:
            return None
        with _open(self.name) as stream:
            return sum(1 for _ in read_lines(stream))


@dataclass(frozen=True)
class CsvTable:
    """A table in text whose first line names the columns; a row is known by the line that it ends on."""

    path: Path
    columns: Columns

    def rows(self) -> Iterator[SourceRow]:
        csv.field_size_limit(MAX_LINE_BYTES)
        with _open(str(self.path)) as stream:
            table = csv.DictReader(
                io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
            )
            self.columns.check(list(table.fieldnames or ()), self.path)
            while True:
                try:
                    row = next(table)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield SourceRow(table.line_num, None, f"is no row of CSV: {error}")
                else:
                    yield SourceRow(table.line_num, self.columns.fields(row))

    def num_rows(self) -> int | None:
        return sum(1 for _ in self.rows())


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file; rows count from 1."""

    path: Path
    columns: Columns

    def rows(self) -> Iterator[SourceRow]:
        names = [name for name in (self.columns.prompt, self.columns.id) if name is not None]
        line = 0
        for batch in self._file().iter_batches(_PARQUET_ROWS, columns=names):
            for row in batch.to_pylist():
                line += 1
                yield SourceRow(line, self.columns.fields(row))

    def num_rows(self) -> int | None:
        return int(self._file().metadata.num_rows)

    def _file(self) -> Any:
        if find_spec("pyarrow") is None:
            raise BadInput(f"{self.path} needs pyarrow to be read. Fix: pip install 'llama-herd[batch]'")
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        try:
            file = ParquetFile(self.path)
        except ArrowInvalid:
            raise BadInput(f"{self.path} is no Parquet file") from None
        self.columns.check(file.schema_arrow.names, self.path)
        return file


def _open(name: str) -> BinaryIO:
    if name == STDIN:
        return sys.stdin.buffer
    if name.endswith(".gz"):
        return gzip.open(name, "rb")  # type: ignore[return-value]
    return open(name, "rb")


def _read_object(line: int, text: bytes | None) -> SourceRow:
    """The object that a line holds; what is said of a wrong one never holds any of its text."""
    if text is None:
        return SourceRow(line, None, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(text.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is no part of it")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is no JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return SourceRow(line, None, "is no JSON: a number or a depth that no reader takes")
    if not isinstance(found, dict):
        return SourceRow(line, None, "must be a JSON object")
    return SourceRow(line, found)


def _refuse(_: str) -> NoReturn:
    raise ValueError
