"""Tables as a batch reads them: CSV, and objects whose fields are columns. Their rows are whole records."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, TextIO

from llama_herd.cli.batch.cell_kind import CellKind, Sort, is_unicode, kind_of, sort_of
from llama_herd.cli.batch.row_template import RowTemplate, named
from llama_herd.cli.batch.sources import Source
from llama_herd.cli.batch.text_file import open_text
from llama_herd.counted import counted
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import MAX_LINE_BYTES, SourceRow

if TYPE_CHECKING:
    import _csv

#: Different names in the objects of a file. They are in memory while it is read.
MAX_COLUMNS = 1000


def lost_row(name: str, line: int) -> BadInput:
    """The error about a row that was read before."""
    return BadInput(
        f"{name} has no row {line:,} any more, which was run. Fix: give the file that the run began with"
    )


class Table(ABC):
    """A table in a file of this name, which may be read again and again."""

    name: str

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """The names of its columns, in their order."""

    @property
    def kinds(self) -> Mapping[str, CellKind]:
        """The kinds of its columns, for Parquet."""
        return dict.fromkeys(self.columns, CellKind.TEXT)

    @abstractmethod
    def records(self, columns: Collection[str]) -> Iterator[SourceRow | None]:
        """The rows by the names of at least these columns, with values of JSON; None as in `Source.rows`."""

    @abstractmethod
    def num_rows(self) -> int | None:
        """The number of rows; raises BadInput for what cannot be read."""

    def check(self, template: RowTemplate) -> None:
        """Raise BadInput if it lacks a column that the template names, or has several of this name."""
        template.check(self.columns, self.name, self._hint())
        self.check_single(template.columns, "rename all but one")

    def check_single(self, needed: Collection[str], fix: str) -> None:
        """Raise BadInput if it has one of these columns several times. fix: with {} for its name."""
        counts = Counter(self.columns)
        twice = next((name for name in needed if counts[name] > 1), None)
        if twice is not None:
            name = named([twice])
            raise BadInput(f"{self.name} has {counts[twice]} columns {name}. Fix: {fix.format(name)}")

    def _hint(self) -> str:
        """What else the first line may tell, where a column is missing."""
        return ""


@dataclass(frozen=True)
class CsvTable(Table):
    """A CSV file whose first line names the columns; a row's number is that of its last line."""

    name: str
    separator: str = ","
    encoding: str | None = None

    @cached_property
    def columns(self) -> Sequence[str]:
        with open_text(self.name, self.encoding) as stream:
            return self._read_names(self._reader(stream))

    def records(self, columns: Collection[str] = ()) -> Iterator[SourceRow]:
        is_over = False

        def lines(text: TextIO) -> Iterator[str]:
            nonlocal is_over
            yield from text
            is_over = True

        with open_text(self.name, self.encoding) as stream:
            table = self._reader(stream, lines)
            names = self._read_names(table)
            while True:
                begin = table.line_num + 1
                try:
                    cells = next(table)
                except StopIteration:
                    return
                except csv.Error as error:
                    if table.line_num > begin:  # the reader would go on in the middle of the cell
                        how = f"not closed for {MAX_LINE_BYTES:,} characters"
                        raise self._open_quote(begin, how) from None
                    yield SourceRow(table.line_num, None, f"is not a row of CSV: {error}")
                    continue
                if is_over:  # a row ends with its line, unless it waits for a quote
                    raise self._open_quote(begin, "never closed")
                if len(cells) == len(names):
                    yield SourceRow(table.line_num, dict(zip(names, cells, strict=True)))
                elif cells:  # else the line is empty
                    has, asked = counted(len(cells), "cell"), counted(len(names), "column")
                    complaint = f"has {has}, but the first line names {asked}"
                    yield SourceRow(table.line_num, None, complaint)

    def num_rows(self) -> int:
        return sum(1 for _ in self.records())

    def _open_quote(self, line: int, how: str) -> BadInput:
        return BadInput(
            f"{self.name}: a quote in the row of line {line:,} is {how}, so all rows behind are part of it. "
            'Fix: close it; within a quoted cell write "" for one'
        )

    def _reader(self, stream: BinaryIO, lines: Callable[[TextIO], Iterator[str]] = iter) -> "_csv.Reader":
        csv.field_size_limit(MAX_LINE_BYTES)
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        return csv.reader(lines(text), delimiter=self.separator)

    def _read_names(self, table: "_csv.Reader") -> list[str]:
        try:
            return next(table, [])
        except csv.Error as error:
            raise BadInput(f"{self.name}: its first line names no columns: {error}") from None

    def _hint(self) -> str:
        if len(self.columns) == 1:
            for mark, said in {";": "';'", "\t": "tab", ",": "','", "|": "'|'"}.items():
                if mark in self.columns[0]:
                    return f"if columns are separated by {said}, say --separator {said}"
        return ""


@dataclass(frozen=True)
class RecordTable(Table):
    """The objects of a source: their fields are the columns. It is read once to know them."""

    name: str
    source: Source

    @property
    def columns(self) -> Sequence[str]:
        return [*self._sorts]

    def check(self, template: RowTemplate) -> None:
        if self.columns:  # without objects none is missing
            super().check(template)

    @property
    def kinds(self) -> Mapping[str, CellKind]:
        return {name: kind_of(sorts) for name, sorts in self._sorts.items()}

    def records(self, columns: Collection[str] = ()) -> Iterator[SourceRow | None]:
        for row in self.source.rows():
            if row is None or row.fields is None or is_unicode(json.dumps(row.fields, ensure_ascii=False)):
                yield row
            else:
                yield SourceRow(row.line, None, "has half of a surrogate pair, which is no text")

    def num_rows(self) -> int | None:
        return self.source.num_rows()

    @cached_property
    def _sorts(self) -> Mapping[str, set[Sort]]:
        """The sorts of each column's values, in the order in which columns come."""
        found: dict[str, set[Sort]] = {}
        for row in self.records():
            for name, value in ({} if row is None else row.fields or {}).items():
                sorts = found.setdefault(name, set())
                if value is not None:
                    sorts.add(sort_of(value))
            if len(found) > MAX_COLUMNS:
                raise BadInput(
                    f"{self.name}: its objects have more than {MAX_COLUMNS:,} different names, which are no "
                    "columns. Fix: put what varies into one field"
                )
        return found
