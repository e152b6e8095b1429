"""`herd batch` over tables, as a person runs it: columns in prompts, tables out, the same command again."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import read_table, write_table

from tests.cli.batch.table_run import OURS, read
from tests.cli.herd_command import COMMAND, environment, invoke
from tests.local.forked_python import start_piped

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("worker")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    write_table(pyarrow.table({"id": [7, 8], "title": ["A fox", "A hen"], "text": ["runs", None]}), path)
    return path


def test_a_table_comes_out_with_its_columns_and_says_what_is_renamed(
    source: Path, tmp_path: Path, redis_url: str
) -> None:
    output = tmp_path / "out.parquet"
    command = ("batch", str(source), "-o", str(output), "--prompt", "Classify {title}: {text}")
    done = invoke(*command, "--id-column", "id", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 1, done.output
    assert "the input's column text is input_text in the output" in done.stdout
    first, second = read(output)
    assert list(first) == ["id", "title", "input_text", *OURS]
    assert first["text"].startswith("Classify A fox: runs: ")
    assert (first["id"], first["custom_id"], first["input_text"]) == (7, "7", "runs")
    assert (second["id"], second["custom_id"], second["text"]) == (8, "8", None)
    assert second["error"] == "invalid_line: line: has no value in the column text"
    assert read_table(output).schema.field("id").type == pyarrow.int64()
    before = output.read_bytes()
    output.unlink()
    again = invoke(*command, "--id-column", "id", "--drop", "title", HERD_REDIS_URL=redis_url)
    assert "continues, 2 rows done" in again.stdout
    assert list(read(output)[0]) == ["id", "input_text", *OURS]
    invoke(*command, "--id-column", "id", HERD_REDIS_URL=redis_url)
    assert output.read_bytes() == before
    other = invoke(*command[:-1], "Sum up {title}", "--id-column", "id", HERD_REDIS_URL=redis_url)
    assert (other.exit_code, "begun with other options: prompt" in other.stderr) == (2, True)


def test_messages_with_columns_are_chats(tmp_path: Path, redis_url: str) -> None:
    source, output, chat = tmp_path / "in.jsonl", tmp_path / "out.csv", tmp_path / "chat.json"
    source.write_text(json.dumps({"title": "A fox", "tags": ["red"]}) + "\n")
    chat.write_text(json.dumps([{"role": "user", "content": "{title} {tags}"}]))
    command = ("batch", str(source), "-o", str(output), "--messages", str(chat), "--with-prompts")
    done = invoke(*command, HERD_REDIS_URL=redis_url)
    assert done.exit_code == 0, done.output
    (row,) = read(output)
    assert json.loads(row["prompt"]) == [{"role": "user", "content": 'A fox ["red"]'}]
    assert (row["title"], row["tags"]) == ("A fox", '["red"]')
    refused = invoke(*command, "--system", "Be brief.", HERD_REDIS_URL=redis_url)
    assert "--messages is a chat already" in refused.stderr


def test_standard_input_fills_prompts_and_gives_no_columns(tmp_path: Path, redis_url: str) -> None:
    line = json.dumps({"title": "A fox"})
    command = ("batch", "-", "--prompt", "Tell of {title}", "-o")
    env = environment(HERD_REDIS_URL=redis_url)
    with start_piped([COMMAND[-1], *command, "out.jsonl"], env, tmp_path) as process:
        process.stdin.write(f"{line}\n")
        process.stdin.close()
        assert process.wait(30) == 0
    (answer,) = read(tmp_path / "out.jsonl")
    assert answer["response"]["body"]["choices"][0]["text"].startswith("Tell of A fox: ")
    refused = invoke(*command, str(tmp_path / "out.csv"), HERD_REDIS_URL=redis_url)
    assert refused.exit_code == 2
    assert "standard input is read only once. Fix: save it in a file" in refused.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--prompt", "{titel}"),
            "has no column titel; its columns are: id, title, text. Did you mean title?",
        ),
        (("--prompt", "{title"), "--prompt: the { at character 1 belongs to no column"),
        (("--drop", "titel", "--prompt", "{title}"), "has no column titel, which --drop names"),
        ((), "has no column prompt; its columns are: id, title, text"),
    ],
)
def test_what_cannot_be_is_told_before_a_file_is_made(
    source: Path, tmp_path: Path, redis_url: str, options: tuple[str, ...], complaint: str
) -> None:
    done = invoke("batch", str(source), "-o", str(tmp_path / "out.csv"), *options, HERD_REDIS_URL=redis_url)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert list(tmp_path.iterdir()) == [source]
