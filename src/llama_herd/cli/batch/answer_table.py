"""The formats of a run's answers, and the flat tables among them: JSON lines, CSV, TSV or Parquet.

A table has a row for each output.
"""

import csv
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_herd.errors import BadInput

if TYPE_CHECKING:  # the command's options name a format, and come before anything is loaded
    from llama_herd.tasks.batch.answers import AnswerFile


class OutputFormat(StrEnum):
    """`openai` is written row by row as rows end; the others are made of such lines at the end of the run."""

    OPENAI = "openai"
    FLAT = "flat"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"

    @classmethod
    def from_suffix(cls, output: Path) -> "OutputFormat":
        """The format that a file's suffix names. Raises BadInput."""
        match output.suffix:
            case ".jsonl" | ".ndjson":
                return cls.OPENAI
            case ".csv" | ".tsv" | ".parquet" as suffix:
                return cls(suffix[1:])
            case suffix:
                raise BadInput(
                    f"-o {output}: its suffix {suffix!r} names no format. "
                    "Fix: end it with .jsonl, .csv, .tsv or .parquet, or say --format"
                )


#: Rows that are in memory at a time.
_LOT = 1024

TableRow = Mapping[str, Any]
#: The columns and their types in Parquet; `prompt` is there on request.
_TYPES = {
    "custom_id": "string",
    "line": "int64",
    "choice": "int64",
    "prompt": "string",
    "text": "string",
    "reasoning": "string",
    "tool_calls": "string",
    "finish_reason": "string",
    "model": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
}


def write_answer_table(
    answers: "AnswerFile", run_id: str, path: Path, format: OutputFormat, *, has_prompts: bool
) -> int:
    """Write a run's answers in the order of its input, whole or not at all; return how many rows.

    Raises CannotWrite.
    """
    columns = [name for name in _TYPES if has_prompts or name != "prompt"]
    draft = path.with_name(f"{path.name}.new")
    num_rows = 0

    def counted() -> Iterator[TableRow]:
        nonlocal num_rows
        for row in _rows(answers, run_id):
            num_rows += 1
            yield row

    try:
        _WRITERS[format](draft, columns, counted())
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        from llama_herd.tasks.batch.answers import CannotWrite

        draft.unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise CannotWrite(
            f"{path} cannot be written: {reason}. Its answers are in {answers.path}. "
            "Fix that, and run the same command again"
        ) from None
    return num_rows


def _rows(answers: "AnswerFile", run_id: str) -> Iterator[TableRow]:
    lines, starts = array("q"), array("q")
    for line, start in answers.line_offsets(run_id):
        lines.append(line)
        starts.append(start)
    with answers.path.open("rb") as file:
        for place in sorted(range(len(lines)), key=lines.__getitem__):
            file.seek(starts[place])
            yield from _output_rows(lines[place], json.loads(file.readline()))


def _output_rows(line: int, answer: Mapping[str, Any]) -> Iterator[TableRow]:
    """The outputs of an answer in OpenAI's form: tokens are those of all, calls the text of a list."""
    body = answer["response"]["body"]
    usage = body["usage"] or {}
    for choice in body["choices"]:
        message = choice.get("message", {})
        calls = message.get("tool_calls")
        yield {
            "custom_id": answer["custom_id"],
            "line": line,
            "choice": choice["index"],
            "prompt": answer.get("prompt"),
            "text": choice["text"] if "text" in choice else message["content"],
            "reasoning": message.get("reasoning_content"),
            "tool_calls": None if calls is None else json.dumps(calls, ensure_ascii=False),
            "finish_reason": choice["finish_reason"],
            "model": body["model"],
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
        }


def _write_flat(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n")


def _write_text(path: Path, columns: Sequence[str], rows: Iterable[TableRow], *, separator: str) -> None:
    """Write CSV, or TSV, by its separator."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=separator)
        table.writerow(columns)
        for row in rows:
            table.writerow([_cell(row[name]) for name in columns])


def _write_parquet(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema([(name, _TYPES[name]) for name in columns])
    rows = iter(rows)
    with ParquetWriter(path, schema) as table:
        while lot := list(islice(rows, _LOT)):
            cells = [{name: _cell(row[name]) for name in columns} for row in lot]
            table.write_table(pyarrow.Table.from_pylist(cells, schema))


def _cell(value: Any) -> Any:
    """A value of a row as a cell of the table: messages and prompts as ids become JSON."""
    return value if value is None or isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)


_WRITERS: Mapping[OutputFormat, Callable[[Path, Sequence[str], Iterable[TableRow]], None]] = {
    OutputFormat.FLAT: _write_flat,
    OutputFormat.CSV: partial(_write_text, separator=","),
    OutputFormat.TSV: partial(_write_text, separator="\t"),
    OutputFormat.PARQUET: _write_parquet,
}
