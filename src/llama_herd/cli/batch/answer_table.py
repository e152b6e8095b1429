"""Tables of a run's answers: flat JSON lines, CSV, TSV or Parquet.

A table has a row for each output, and one for each failed row of the input.
"""

import csv
import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from llama_herd.cli.batch.output_format import OutputFormat
from llama_herd.cli.batch.parquet_table import ArrowReader, ParquetTable, arrow_cells, arrow_type
from llama_herd.cli.batch.row_template import cell_text
from llama_herd.cli.batch.schema_columns import read_answer
from llama_herd.cli.batch.table_layout import OWN, TableLayout
from llama_herd.cli.batch.tables import lost_row
from llama_herd.cli.batch.vector_file import VectorFile
from llama_herd.tasks.batch.answers import answered_rows
from llama_herd.tasks.storage.line_file import CannotWrite, LineFile

#: Of a row whose answer is no text, in a table of texts.
_NO_TEXT = "the answer is not text: it is in the file of answers. Fix: for a table of vectors --embed"
#: Rows that are in memory at a time.
_LOT = 1024

TableRow = Mapping[str, Any]


def write_answer_table(
    files: Sequence[LineFile],
    run_id: str,
    path: Path,
    format: OutputFormat,
    layout: TableLayout,
    vectors: VectorFile | None,
) -> int:
    """Write a run's answers and errors in the order of its input, whole or not at all; return how many rows.

    files: those of the answers and of the errors. vectors: where vectors stand. Raises CannotWrite, and
    BadInput if the input is another one than before.
    """
    draft = path.with_name(f"{path.name}.new")
    num_rows = 0

    def counted() -> Iterator[TableRow]:
        nonlocal num_rows
        for row in _rows(files, run_id, layout, vectors):
            num_rows += 1
            yield row

    if vectors is not None and next(answered_rows(files[1].path, run_id), None) is None:
        layout = replace(layout, vector_width=vectors.width)
    try:
        _WRITERS[format](draft, layout, counted())
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CannotWrite(
            f"{path} cannot be written: {reason}. Its answers are in {files[0].path}. "
            "Fix that, and run the same command again"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return num_rows


def _rows(
    files: Sequence[LineFile], run_id: str, layout: TableLayout, vectors: VectorFile | None
) -> Iterator[TableRow]:
    """Our columns and the schema's, of all rows that have ended."""
    fields = list(layout.fields.values())
    for line, answer in _lines(files, run_id):
        for row in _output_rows(line, answer, vectors):
            if row["error"] is None and fields:
                values, complaint = read_answer(fields, row["text"])
                row["error"] = complaint or None
            else:
                values = {}
            ours = {name: row[name] for name in layout.own}
            yield ours | {name: values.get(field.name) for name, field in layout.fields.items()}


def _lines(files: Sequence[LineFile], run_id: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """All lines of the files, in the order of the rows that they answer."""
    rows, starts, ends = array("q"), array("q"), []
    for file in files:
        for row, start in answered_rows(file.path, run_id):
            rows.append(row)
            starts.append(start)
        ends.append(len(rows))
    with ExitStack() as stack:
        opened = [stack.enter_context(file.path.open("rb")) for file in files]
        for place in sorted(range(len(rows)), key=rows.__getitem__):
            stream = opened[next(at for at, end in enumerate(ends) if place < end)]
            stream.seek(starts[place])
            yield rows[place], json.loads(stream.readline())


def _output_rows(
    line: int, answer: Mapping[str, Any], vectors: VectorFile | None
) -> Iterator[dict[str, Any]]:
    """The outputs of an answer in OpenAI's form: tokens are those of all, calls the text of a list."""
    row = {
        **dict.fromkeys(OWN),
        "custom_id": answer["custom_id"],
        "line": line,
        "prompt": answer.get("prompt"),
    }
    if error := answer["error"]:
        yield {**row, "error": f"{error['code']}: {error['message']}"}
        return
    if vectors is not None:
        yield {**row, "vector": vectors.read(answer["position"]), "model": answer["model"]}
        return
    body = answer["response"]["body"]
    usage = body["usage"] or {}
    if "choices" not in body:
        yield {**row, "model": body["model"], "error": _NO_TEXT}
        return
    for choice in body["choices"]:
        message = choice.get("message", {})
        calls = message.get("tool_calls")
        yield {
            **row,
            "choice": choice["index"],
            "text": choice["text"] if "text" in choice else message["content"],
            "reasoning": message.get("reasoning_content"),
            "tool_calls": None if calls is None else json.dumps(calls, ensure_ascii=False),
            "finish_reason": choice["finish_reason"],
            "model": body["model"],
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
        }


def _joined(layout: TableLayout, rows: Iterable[TableRow]) -> Iterator[TableRow]:
    """The rows with the input's columns before ours."""
    if layout.table is None:
        yield from rows
        return
    records = layout.table.records(list(layout.kept))
    record = next(records, None)
    for row in rows:
        while record is not None and record.line < row["line"]:
            record = next(records, None)
        if record is None or record.line != row["line"]:
            raise lost_row(layout.table.name, row["line"])
        fields = record.fields or {}
        yield {**{new: fields.get(old) for old, new in layout.kept.items()}, **row}


def _write_flat(path: Path, layout: TableLayout, rows: Iterable[TableRow]) -> None:
    columns = layout.columns
    with path.open("w", encoding="utf-8") as file:
        for row in _joined(layout, rows):
            values = {name: _finite(row[name]) for name in columns}
            file.write(json.dumps(values, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    """A value as JSON has it: without NaN and the infinite, which become null."""
    match value:
        case array():
            return [_finite(one) for one in value]
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_finite(one) for one in value]
        case dict():
            return {name: _finite(one) for name, one in value.items()}
    return value


def _write_text(path: Path, layout: TableLayout, rows: Iterable[TableRow], *, separator: str) -> None:
    """Write CSV, or TSV, by its separator."""
    columns = layout.columns
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=separator)
        table.writerow(columns)
        for row in _joined(layout, rows):
            table.writerow([None if row[name] is None else cell_text(_listed(row[name])) for name in columns])


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, array) else value


def _write_parquet(path: Path, layout: TableLayout, rows: Iterable[TableRow]) -> None:
    """The columns of a Parquet file are taken over by Arrow, so that each type stays as it is."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    kinds = {name: OWN[name] for name in layout.own} | {
        name: field.kind for name, field in layout.fields.items()
    }
    reader, fields = None, []
    if isinstance(layout.table, ParquetTable):
        reader = ArrowReader(layout.table, list(layout.kept))
        fields = [layout.table.schema.field(old).with_name(new) for old, new in layout.kept.items()]
    elif layout.table is not None:
        kinds = {new: layout.table.kinds[old] for old, new in layout.kept.items()} | kinds
        rows = _joined(layout, rows)
    types = {name: arrow_type(kind, layout.vector_width) for name, kind in kinds.items()}
    fields += [pyarrow.field(name, type) for name, type in types.items()]
    schema, rows = pyarrow.schema(fields), iter(rows)
    with ParquetWriter(path, schema) as table:
        while lot := list(islice(rows, _LOT)):
            taken = [] if reader is None else reader.take([row["line"] for row in lot])
            made = [
                arrow_cells(kind, [row[name] for row in lot], types[name]) for name, kind in kinds.items()
            ]
            table.write_table(pyarrow.Table.from_arrays([*taken, *made], schema=schema))


_WRITERS: Mapping[OutputFormat, Callable[[Path, TableLayout, Iterable[TableRow]], None]] = {
    OutputFormat.FLAT: _write_flat,
    OutputFormat.CSV: partial(_write_text, separator=","),
    OutputFormat.TSV: partial(_write_text, separator="\t"),
    OutputFormat.PARQUET: _write_parquet,
}
