"""Names of rows, in files of every kind."""

import gzip
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table

from llama_herd.cli.batch.input_file import InputOptions, open_source
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.settings import Settings


@pytest.mark.parametrize(
    ("name", "lines"), [("in.jsonl.gz", (1, 2)), ("in.csv", (2, 3)), ("in.parquet", (1, 2))]
)
def test_a_name_is_taken_in_every_kind_of_file(tmp_path: Path, name: str, lines: tuple[int, int]) -> None:
    path = tmp_path / name
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(b'{"custom_id": "x", "prompt": "a"}\n' * 2))
    elif path.suffix == ".csv":
        path.write_text("prompt,n\na,x\nb,x\n")
    else:
        write_table(pyarrow.table({"prompt": ["a", "b"], "n": ["x", "x"]}), path)
    source = open_source(str(path), InputOptions(id_column=None if path.suffix == ".gz" else "n"))
    reader = RequestReader(Settings(), RowOptions(), "r")
    found = [reader.read(row) for row in source.rows() if row is not None]
    assert [row.index for row in found] == list(lines)
    assert found[0].failure is None
    assert found[1].failure is not None
    assert (
        found[1].failure.message
        == f"custom_id: must be unique, but lines {lines[0]} and {lines[1]} have the same"
    )
