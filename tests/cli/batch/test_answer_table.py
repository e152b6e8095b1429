"""Tables of answers: each format, in the order of the input, failed rows too; with and without prompts."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table

from tests.cli.batch.batch_command import read
from tests.cli.herd_command import invoke

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("worker")]

CHAT = [{"role": "user", "content": "wörld, \n"}]
INPUT: list[dict[str, Any]] = [
    {"custom_id": "one", "prompt": 'line, "1"\nline 2'},
    {"custom_id": "chat", "messages": CHAT},
    {"custom_id": "bad", "prompt": "x", "colour": 1},
    {"custom_id": "ids", "prompt_ids": [1, 2]},
]
COLUMNS = ["custom_id", "line", "choice", "text", "reasoning", "tool_calls", "finish_reason", "model"]
COLUMNS += ["prompt_tokens", "completion_tokens", "error"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in INPUT))
    return path


def run(source: Path, output: Path, url: str, *options: str) -> None:
    done = invoke("batch", str(source), "-o", str(output), *options, HERD_REDIS_URL=url)
    assert done.exit_code == 1, done.output  # one row is bad
    assert "3 rows done, 1 failed" in done.stdout
    assert [one["custom_id"] for one in read(Path(f"{output}.errors.jsonl"))] == ["bad"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """A table in any format, numbers as text."""
    if path.suffix == ".parquet":
        found = read_table(path).to_pylist()
    elif path.suffix == ".jsonl":
        found = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        with path.open(newline="") as file:
            found = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    return [{name: value if value is None else str(value) for name, value in row.items()} for row in found]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_each_output_is_a_row_in_the_order_of_the_input(
    source: Path, tmp_path: Path, redis_url: str, suffix: str
) -> None:
    output = tmp_path / f"out{suffix}"
    run(source, output, redis_url, *(("--format", "flat") if suffix == ".jsonl" else ()))
    found = rows_of(output)
    assert [list(row) for row in found] == [COLUMNS] * 4
    assert [(row["custom_id"], row["line"]) for row in found] == [
        *(("one", "1"), ("chat", "2")),
        *(("bad", "3"), ("ids", "4")),
    ]
    failed = found.pop(2)
    assert failed["error"] == "invalid_line: colour: unknown field"
    assert not any(failed[name] for name in COLUMNS if name not in ("custom_id", "line", "error"))
    answers = {one["custom_id"]: one["response"]["body"] for one in read(Path(f"{output}.answers.jsonl"))}
    for row in found:
        body = answers[row["custom_id"]]
        (choice,) = body["choices"]
        assert row["text"] == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert (row["choice"], row["finish_reason"], row["model"]) == (
            "0",
            choice["finish_reason"],
            body["model"],
        )
        assert row["completion_tokens"] == str(body["usage"]["completion_tokens"])
    assert 'line, "1"\nline 2' in found[0]["text"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_on_request_each_row_has_its_prompt(
    source: Path, tmp_path: Path, redis_url: str, suffix: str
) -> None:
    output = tmp_path / f"out{suffix}"
    run(source, output, redis_url, "--with-prompts")
    prompts = [row["prompt"] for row in rows_of(output)]
    assert [prompt for prompt in prompts if prompt] == [
        'line, "1"\nline 2',
        json.dumps(CHAT, ensure_ascii=False),
        "[1, 2]",
    ]


def test_on_request_openais_lines_have_their_prompts_too(
    source: Path, tmp_path: Path, redis_url: str
) -> None:
    output = tmp_path / "out.jsonl"
    run(source, output, redis_url, "--with-prompts")
    prompts = {one["custom_id"]: one["prompt"] for one in read(output)}
    assert prompts == {"one": INPUT[0]["prompt"], "chat": CHAT, "ids": [1, 2]}
    again = invoke("batch", str(source), "-o", str(output), HERD_REDIS_URL=redis_url)
    assert "other options: with_prompts" in again.stderr


def test_the_same_command_writes_the_table_again_and_runs_nothing(
    source: Path, tmp_path: Path, redis_url: str
) -> None:
    output = tmp_path / "out.csv"
    run(source, output, redis_url)
    before = output.read_bytes()
    output.unlink()
    run(source, output, redis_url)
    assert output.read_bytes() == before
    assert len(read(Path(f"{output}.answers.jsonl"))) == 3


@pytest.mark.parametrize("formats", [("openai", "flat"), ("flat", "openai")])
def test_a_file_of_answers_stays_when_another_format_is_asked_for(
    source: Path, tmp_path: Path, redis_url: str, formats: tuple[str, str]
) -> None:
    output = tmp_path / "out.jsonl"
    run(source, output, redis_url, "--format", formats[0])
    before = output.read_bytes()
    again = invoke("batch", str(source), "-o", str(output), "--format", formats[1], HERD_REDIS_URL=redis_url)
    assert (again.exit_code, output.read_bytes() == before) == (2, True)
    assert "begun with other options: format" in again.stderr


def test_a_table_takes_the_place_of_no_device(source: Path, tmp_path: Path, redis_url: str) -> None:
    output = tmp_path / "out.csv"
    os.mkfifo(output)
    refused = invoke("batch", str(source), "-o", str(output), HERD_REDIS_URL=redis_url)
    assert (refused.exit_code, output.is_fifo()) == (2, True)
    assert "out.csv is not a plain file" in refused.stderr
    assert sorted(tmp_path.iterdir()) == [source, output]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_an_output_that_cannot_be_looked_at_is_named(
    source: Path, tmp_path: Path, redis_url: str, suffix: str
) -> None:
    output = tmp_path / f"{'o' * 255}{suffix}"
    refused = invoke("batch", str(source), "-o", str(output), HERD_REDIS_URL=redis_url)
    assert (refused.exit_code, "cannot be written: File name too long" in refused.stderr) == (2, True)
