"""--schema FILE holds the outputs of `herd generate` and of `herd batch` to a schema."""

import json
from pathlib import Path
from typing import Any

import pytest

from llama_herd.cli.job_options import response_format
from llama_herd.errors import BadInput
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.tasks.settings import Settings
from tests.cli.herd_command import invoke

SCHEMA = {"type": "object", "properties": {"legs": {"enum": [2, 4]}}, "required": ["legs"]}
CLOSED = {**SCHEMA, "additionalProperties": False}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(CLOSED))
    return path


@pytest.mark.long
def test_an_output_has_the_form(file: Path) -> None:
    done = invoke("generate", "--local", "--model", str(BUNDLED_MODEL), "--schema", str(file), "A llama: ")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["legs"] in (2, 4)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    with pytest.raises(BadInput, match=r"--schema .*schema.json: No such file"):
        response_format(path)
    path.write_text("{")
    with pytest.raises(BadInput, match=r"schema.json: is no JSON"):
        response_format(path)


def test_rows_of_a_batch_have_it_unless_they_ask_for_another(file: Path) -> None:
    reader = RequestReader(Settings(), RowOptions(response_format=response_format(file)), "run")
    openai = {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    regex = {"structured_outputs": {"regex": "a"}}
    rows: list[dict[str, Any]] = [{"prompt": "x"}, openai, {"prompt": "x", **regex}]
    jobs = [reader.read(SourceRow(line, fields)).job for line, fields in enumerate(rows, start=1)]
    text = json.dumps(CLOSED, separators=(",", ":"))
    asked = OutputForm("json", text, "response_format.json_schema.schema")
    other = OutputForm("regex", "a", "structured_outputs.regex")
    found = [job.output_form for job in jobs if isinstance(job, GenerationJob)]
    assert found == [asked, asked, other]
