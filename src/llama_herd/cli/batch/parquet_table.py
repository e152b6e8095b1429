"""Parquet files as tables, whose columns go into another Parquet file as they are, and elsewhere as JSON."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from llama_herd.cli.batch.cell_kind import CellKind
from llama_herd.cli.batch.row_template import named
from llama_herd.cli.batch.tables import Table, lost_row
from llama_herd.errors import BadInput
from llama_herd.extras import install_command
from llama_herd.tasks.batch.source_row import SourceRow

#: Bytes of each column, and rows, that are in memory at a time: a group of rows may be as long as the file.
_BUFFER_BYTES = 1 << 18
_ROWS = 256


def need_pyarrow(name: str, what: str) -> None:
    """Raise BadInput unless pyarrow is installed; `what` the file needs it for."""
    if find_spec("pyarrow") is None:
        raise BadInput(f"{name} needs pyarrow to be {what}. Fix: {install_command('batch')}")


@dataclass(frozen=True)
class ParquetTable(Table):
    """A Parquet file; rows count from 1."""

    name: str

    @property
    def columns(self) -> Sequence[str]:
        return list(self.schema.names)

    @cached_property
    def schema(self) -> Any:
        """Its schema, of Arrow."""
        return self._open().schema_arrow

    def num_rows(self) -> int:
        return int(self._open().metadata.num_rows)

    def records(self, columns: Collection[str]) -> Iterator[SourceRow]:
        line = 0
        forms = {name: plain_type(self.schema.field(name).type) for name in columns}
        for batch in self.batches(columns):
            plain = {name: self._plain_cells(batch, name, form) for name, form in forms.items()}
            for number in range(batch.num_rows):
                line += 1
                yield SourceRow(line, {name: cells[number] for name, cells in plain.items()})

    def _plain_cells(self, batch: Any, name: str, form: Any) -> list[Any]:
        """The values of a column as JSON has them. Raises BadInput: texts may be no UTF-8, zones unknown."""
        from pyarrow import ArrowException

        try:
            found: list[Any] = batch.column(name).cast(form).to_pylist()
        except (ArrowException, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(
                f"{self.name}: the column {named([name])} has a value that has no form as text: {reason}. "
                f"Fix: mend it; a table of answers leaves it out by --drop {named([name])}"
            ) from None
        return found

    def batches(self, columns: Collection[str]) -> Iterator[Any]:
        """The rows as batches of Arrow, with at least these columns. Raises BadInput."""
        # A dot in a name leads into a struct: what else it finds is not looked at.
        with self._named_errors():
            yield from self._open().iter_batches(_ROWS, columns=list(columns))

    def check_plain(self, columns: Collection[str], where: str, fix: str) -> None:
        """Raise BadInput if a column has no form in JSON. where: what needs it; fix: with {} for its name."""
        for name in columns:
            type = self.schema.field(name).type
            try:
                plain_type(type)
            except NoPlainType:
                raise BadInput(
                    f"{self.name}: {where} cannot have the column {named([name])}, since {type} has no form "
                    f"as text. Fix: {fix.format(named([name]))}"
                ) from None

    def _open(self) -> Any:
        need_pyarrow(self.name, "read")
        from pyarrow.parquet import ParquetFile

        with self._named_errors():
            return ParquetFile(self.name, buffer_size=_BUFFER_BYTES, pre_buffer=False)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except (ArrowException, OSError):
            raise BadInput(
                f"{self.name} cannot be read: it is not a Parquet file, or it is damaged"
            ) from None


def arrow_type(kind: CellKind, vector_width: int) -> Any:
    """The type of Arrow for a kind of column; vector_width: as in `TableLayout`."""
    import pyarrow

    is_vector = kind is CellKind.VECTOR
    return pyarrow.list_(pyarrow.float32(), vector_width or -1) if is_vector else kind.arrow_name


def arrow_cells(kind: CellKind, values: Sequence[Any], type: Any) -> Any:
    """Values of this kind as an array of Arrow; the numbers of vectors are never objects of Python."""
    import pyarrow

    if kind is not CellKind.VECTOR:
        return pyarrow.array([kind.cell(value) for value in values], type)
    vectors = [value for value in values if value is not None]
    num_floats = [0 if value is None else len(value) for value in values]
    numbers = pyarrow.py_buffer(b"".join(vectors))
    flat = pyarrow.FloatArray.from_buffers(pyarrow.float32(), sum(num_floats), [None, numbers])
    mask = pyarrow.array([value is None for value in values])
    return pyarrow.ListArray.from_arrays([0, *accumulate(num_floats)], flat, mask=mask).cast(type)


class NoPlainType(ValueError):
    """Values of a type have no form in JSON."""


def plain_type(type: Any) -> Any:
    """The type of Arrow whose values Python has as JSON: numbers, lists and the like; times become texts.

    Raises NoPlainType for bytes, and for types that Arrow has no texts of.
    """
    import pyarrow

    plain = _plain_type(type)
    try:
        pyarrow.nulls(1, type).cast(plain)
    except pyarrow.ArrowException:
        raise NoPlainType from None
    return plain


def _plain_type(type: Any) -> Any:
    import pyarrow
    from pyarrow import types

    if isinstance(type, pyarrow.BaseExtensionType):
        return _plain_type(type.storage_type)
    if types.is_dictionary(type) or types.is_run_end_encoded(type):
        return _plain_type(type.value_type)
    if types.is_struct(type):
        if len({field.name for field in type}) < type.num_fields:  # which no dict of Python holds
            raise NoPlainType
        return pyarrow.struct([field.with_type(_plain_type(field.type)) for field in type])
    if types.is_map(type):
        return pyarrow.map_(_plain_type(type.key_type), _plain_type(type.item_type))
    if types.is_nested(type) and hasattr(type, "value_type"):
        return pyarrow.list_(_plain_type(type.value_type))
    if "binary" in str(type) or types.is_duration(type):  # bytes, and times without their unit
        raise NoPlainType
    if types.is_float16(type):
        return pyarrow.float64()
    is_number = types.is_integer(type) or types.is_floating(type)
    return type if is_number or types.is_boolean(type) or types.is_null(type) else pyarrow.string()


class ArrowReader:
    """Columns of a Parquet file, for rows that are asked for by rising numbers."""

    def __init__(self, table: ParquetTable, columns: Sequence[str]) -> None:
        self._name = table.name
        self._names = columns
        self._batches = table.batches(columns)
        self._types = [table.schema.field(name).type for name in columns]
        self._batch: Any = None
        self._first = 1  # the number of the batch's first row
        self._next = 1

    def take(self, lines: Sequence[int]) -> list[Any]:
        """The cells of these rows, a chunked array for each column; a number may come several times."""
        import pyarrow

        parts: list[Any] = []
        start = 0
        while start < len(lines):
            self._read_to(lines[start])
            end = start + 1
            while end < len(lines) and lines[end] == lines[end - 1] + 1 < self._next:
                end += 1
            # A slice needs no kernel, and not all types have one to take rows by their numbers.
            part = self._batch.slice(lines[start] - self._first, end - start)
            parts.append([part.column(name) for name in self._names])
            start = end
        return [
            pyarrow.chunked_array([part[at] for part in parts], type) for at, type in enumerate(self._types)
        ]

    def _read_to(self, line: int) -> None:
        """Read the batch with this row. Raises BadInput if there is none."""
        while line >= self._next:
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise lost_row(self._name, line)
            self._first, self._next = self._next, self._next + self._batch.num_rows
