"""Runs of tables whose answers are made by hand: what becomes of columns, without a queue."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow.parquet import read_table

from llama_herd.cli.batch.files import BatchFiles, BatchPlan
from llama_herd.cli.batch.input_file import InputOptions
from llama_herd.cli.batch.output_format import OutputFormat
from llama_herd.counted import counted
from llama_herd.tasks import BatchItem, BatchRow, Result
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

Row = dict[str, Any]
#: What each of our columns is called that every table has.
OURS = [
    *("custom_id", "line", "choice", "text", "reasoning", "tool_calls", "finish_reason", "model"),
    *("prompt_tokens", "completion_tokens", "error"),
]


def plan(source: Path, output: Path, *, schema: Any = None, **options: Any) -> BatchPlan:
    """The plan of `herd batch source -o output`; .jsonl is flat."""
    format = OutputFormat.FLAT if output.suffix == ".jsonl" else OutputFormat.from_suffix(output)
    dropped = options.pop("dropped", ())
    form = schema and {"type": "json_schema", "json_schema": {"schema": schema}}
    return BatchPlan(
        str(source),
        output,
        RowOptions(response_format=form),
        InputOptions(**options),
        format=format,
        dropped=dropped,
    )


def jobs(files: BatchFiles) -> list[GenerationJob]:
    """The valid jobs of a run."""
    return [row.job for row in files.rows(Settings()) if row and isinstance(row.job, GenerationJob)]


def answered(asked: BatchPlan, answer: Callable[[BatchRow], str] = lambda row: "fine") -> BatchFiles:
    """Answer each row that is a job, and write the table."""
    with BatchFiles(asked) as files:
        rows = [row for row in files.rows(Settings()) if row is not None]
        files.write([item(row, answer) for row in rows])
        assert files.num_rows is not None
        assert files.write_table() == f"{asked.output}: {counted(files.num_rows, 'row')}"
    return files


def item(row: BatchRow, answer: Callable[[BatchRow], str]) -> BatchItem:
    if row.failure is not None:
        return BatchItem(row, rejection=row.failure)
    return BatchItem(row, f"job-{row.index}", "tales", Result.of(answer(row)))


def read(path: Path) -> list[Row]:
    """The rows of a table: of CSV texts, else typed values."""
    if path.suffix == ".parquet":
        found: list[Row] = read_table(path).to_pylist()
        return found
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
