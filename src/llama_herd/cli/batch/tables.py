"""Rows of tables: CSV, TSV and Parquet."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llama_herd.cli.batch.source import open_unpacked
from llama_herd.errors import BadInput
from llama_herd.extras import install_command
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES
from llama_herd.tasks.batch.source_row import SourceRow

#: Most rows of a Parquet file in memory at a time.
_PARQUET_ROWS = 256


@dataclass(frozen=True)
class RowColumns:
    """Which columns of a table make a row."""

    prompt: str = "prompt"
    id: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.prompt, self.id) if name is not None]

    def check(self, names: Sequence[str], path: Path) -> None:
        """Raise BadInput if the table lacks one."""
        missing = [name for name in self.names if name not in names]
        if missing:
            raise BadInput(
                f"{path} has no column {missing[0]}; its columns are: {', '.join(names) or 'none'}. "
                "Fix: name the right one by --prompt-column or --id-column"
            )

    def fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the table as the fields of a request."""
        fields = {"prompt": row[self.prompt]}
        if self.id is None:
            return fields
        value = row[self.id]
        return fields | {"custom_id": None if value is None else str(value)}


@dataclass(frozen=True)
class CsvTable:
    """A CSV file whose first line names the columns; a row's number is that of its last line."""

    path: Path
    columns: RowColumns
    separator: str = ","

    def rows(self) -> Iterator[SourceRow]:
        csv.field_size_limit(MAX_LINE_BYTES)
        with open_unpacked(str(self.path)) as stream:
            table = csv.DictReader(
                io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline=""),
                delimiter=self.separator,
            )
            self.columns.check(list(table.fieldnames or ()), self.path)
            while True:
                try:
                    row = next(table)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield SourceRow(table.line_num, None, f"is not a row of CSV: {error}")
                else:
                    yield SourceRow(table.line_num, self.columns.fields(row))

    def num_rows(self) -> int | None:
        return sum(1 for _ in self.rows())


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file; rows count from 1."""

    path: Path
    columns: RowColumns

    def rows(self) -> Iterator[SourceRow]:
        line = 0
        file = self._file()
        with self._named_errors():
            for batch in file.iter_batches(_PARQUET_ROWS, columns=self.columns.names):
                for row in batch.to_pylist():
                    line += 1
                    yield SourceRow(line, self.columns.fields(row))

    def num_rows(self) -> int | None:
        return int(self._file().metadata.num_rows)

    def _file(self) -> Any:
        if find_spec("pyarrow") is None:
            raise BadInput(f"{self.path} needs pyarrow to be read. Fix: {install_command('batch')}")
        from pyarrow.parquet import ParquetFile

        with self._named_errors():
            file = ParquetFile(self.path)
        self.columns.check(file.schema_arrow.names, self.path)
        return file

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except (ArrowException, OSError):
            raise BadInput(
                f"{self.path} cannot be read: it is not a Parquet file, or it is damaged"
            ) from None
