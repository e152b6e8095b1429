"""What a line asks for: OpenAI's fields as ours, and every wrong one named."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table

from llama_herd.tasks.client.batch.row import BatchRow
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.settings import Settings
from llama_herd.worker.batch.openai_body import CHAT, COMPLETIONS
from llama_herd.worker.batch.request import Request, RequestReader
from llama_herd.worker.batch.row_options import RowOptions
from llama_herd.worker.batch.source import SourceRow
from llama_herd.worker.batch.source_file import open_source
from llama_herd.worker.batch.tables import Columns

OPTIONS = RowOptions()
MESSAGES = [{"role": "user", "content": "secret"}]


def read(fields: dict[str, Any], options: RowOptions = OPTIONS) -> BatchRow:
    return RequestReader(Settings(), options, "r").read(SourceRow(1, fields))


def openai(url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    source = {"messages": MESSAGES} if url == CHAT else {"prompt": "secret"}
    return {"custom_id": "a", "method": "POST", "url": url, "body": {**source, **body}}


def job(fields: dict[str, Any], options: RowOptions = OPTIONS) -> GenerationJob:
    row = read(fields, options)
    assert row.failure is None
    assert isinstance(row.job, GenerationJob)
    return row.job


def complaint(fields: dict[str, Any]) -> str:
    row = read(fields)
    assert row.failure is not None
    assert row.failure.code == "invalid_line"
    assert "secret" not in row.failure.message
    return row.failure.message


@pytest.mark.parametrize(
    ("url", "body", "sampling"),
    [
        (COMPLETIONS, {"max_tokens": 9, "temperature": 0, "stop": "x"}, {"max_tokens": 9, "stop": ("x",)}),
        (COMPLETIONS, {"stop": ["x", "y"], "n": 3, "seed": 5}, {"stop": ("x", "y"), "n": 3, "seed": 5}),
        (COMPLETIONS, {"logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
        (COMPLETIONS, {"logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        (CHAT, {"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        (CHAT, {"max_completion_tokens": 9}, {"max_tokens": 9}),
        (CHAT, {"logit_bias": {"17": -100}}, {"logit_bias": {17: -100}}),
        (COMPLETIONS, {"top_k": -1, "min_p": 0.1}, {"top_k": 0, "min_p": 0.1}),
        (COMPLETIONS, {"repetition_penalty": 1.1, "ignore_eos": True}, {"repetition_penalty": 1.1}),
        (CHAT, {"truncate_prompt_tokens": -1, "prompt_logprobs": 2}, {"truncate_prompt_tokens": -1}),
        (COMPLETIONS, {"temperature": None, "stop": None, "logprobs": None, "user": "u"}, {"temperature": 1}),
        (CHAT, {"stream": False, "store": False, "response_format": {"type": "text"}}, {"n": 1}),
    ],
)
def test_fields_of_openai_and_vllm_mean_what_they_mean_there(
    url: str, body: dict[str, Any], sampling: dict[str, Any]
) -> None:
    found = job(openai(url, **body)).sampling
    assert {name: getattr(found, name) for name in sampling} == sampling


@pytest.mark.parametrize(
    ("url", "body", "named"),
    [
        (COMPLETIONS, {"stream": True}, "body.stream: not supported here but as false"),
        (COMPLETIONS, {"colour": 1, "echo": True}, "body.colour: not supported here; body.echo"),
        (COMPLETIONS, {"prompt": ["secret", "secret"]}, "body.prompt: must be one prompt a line, got 2"),
        (COMPLETIONS, {"max_completion_tokens": 3}, "body.max_completion_tokens: not supported"),
        (CHAT, {"tools": [{"type": "function"}]}, "body.tools: not supported here but as []"),
        (
            CHAT,
            {"messages": [{"role": "tool", "content": "secret"}]},
            "body.messages.0.role: input",
        ),
        (CHAT, {"messages": "secret"}, "body.messages: "),
        (CHAT, {"temperature": 7, "top_p": 0}, "body.temperature: input should be less than or equal to 2"),
        (CHAT, {"temperature": 7, "top_p": 0}, "body.top_p: input should be greater than 0, got 0"),
        (COMPLETIONS, {"n": 2, "temperature": 0}, "body: n must be 1 when temperature is 0"),
        (COMPLETIONS, {"a secret": 1}, "body.?: not supported here"),
    ],
)
def test_every_wrong_field_of_a_body_is_named(url: str, body: dict[str, Any], named: str) -> None:
    assert named in complaint(openai(url, **body))


def test_a_line_of_the_wrong_form_names_all_that_is_wrong() -> None:
    wrong = {"method": "GET", "url": "/v1/embeddings", "body": [], "colour": 1}
    message = complaint(wrong)
    for name in (
        "colour: unknown",
        "method: must be POST",
        "url: must be /v1/",
        "body: must be",
        "custom_id: ",
    ):
        assert name in message


def test_a_prompt_may_be_ids_or_a_list_of_one() -> None:
    assert job(openai(prompt=[1, 2, 3])).prompt_ids == (1, 2, 3)
    assert job(openai(prompt=[[1, 2, 3]])).prompt_ids == (1, 2, 3)
    assert job(openai(prompt=["one"])).prompt == "one"


def test_a_message_may_be_in_parts_and_from_a_developer() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    turns = [{"role": "developer", "content": parts}, {"role": "user", "content": "hi", "name": None}]
    found = job(openai(CHAT, messages=turns)).messages
    assert found is not None
    assert [(turn.role, turn.content) for turn in found] == [("system", "one two"), ("user", "hi")]


def test_a_plain_line_has_the_fields_of_our_job_and_may_leave_sampling_out() -> None:
    row = read(
        {"prompt": "secret", "max_tokens": 5, "sampling": {"top_k": 3}, "priority": 2, "custom_id": "x"}
    )
    assert row.tag == Request("x", COMPLETIONS)
    assert isinstance(row.job, GenerationJob)
    assert (row.job.sampling.max_tokens, row.job.sampling.top_k, row.job.priority) == (5, 3, 2)
    assert read({"messages": MESSAGES}).tag == Request("line-1", CHAT)
    assert complaint({"prompt": "secret", "max_tokens": 0, "colour": 1}) == (
        "sampling.max_tokens: input should be greater than or equal to 1, got 0; colour: unknown field"
    )


def test_options_hold_for_rows_that_say_nothing_else_but_the_model_for_all() -> None:
    options = RowOptions(model="big", is_chat=True, system="be kind", sampling={"max_tokens": 7})
    found = job({"prompt": "secret"}, options)
    assert found.messages is not None
    assert [turn.content for turn in found.messages] == ["be kind", "secret"]
    assert (found.model, found.sampling.max_tokens, found.priority, found.flush_ms) == ("big", 7, -10, 500)
    assert job(openai(model="other", max_tokens=8), options).sampling.max_tokens == 8
    assert job(openai(model="other"), options).model == "big"
    assert job(openai(model="other")).model == "other"


def test_a_seed_depends_on_the_line_and_on_what_the_run_is_given() -> None:
    def seed(line: int, run_id: str, **options: Any) -> int | None:
        row = RequestReader(Settings(), RowOptions(**options), run_id).read(SourceRow(line, {"prompt": "x"}))
        assert isinstance(row.job, GenerationJob)
        return row.job.sampling.seed

    assert seed(1, run_id="r") == seed(1, run_id="r") != seed(2, run_id="r")
    assert seed(1, run_id="r") != seed(1, run_id="s")
    assert seed(1, run_id="r", seed=7) == seed(1, run_id="s", seed=7)


def test_a_name_that_came_before_is_an_error_that_names_both_lines() -> None:
    reader = RequestReader(Settings(), OPTIONS, "r")
    first, second = (reader.read(SourceRow(line, openai())) for line in (3, 9))
    assert first.failure is None
    assert second.failure is not None
    assert second.failure.message == "custom_id: lines 3 and 9 have the same"


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
    source = open_source(str(path), Columns(id=None if path.suffix == ".gz" else "n"))
    reader = RequestReader(Settings(), OPTIONS, "r")
    found = [reader.read(row) for row in source.rows() if row is not None]
    assert [row.index for row in found] == list(lines)
    assert found[0].failure is None
    assert found[1].failure is not None
    assert found[1].failure.message == f"custom_id: lines {lines[0]} and {lines[1]} have the same"


@pytest.mark.parametrize("name", ["", None, 7, "x" * 513, "\ud800"])
def test_a_name_that_cannot_be_written_is_refused(name: object) -> None:
    assert complaint(openai() | {"custom_id": name}).startswith("custom_id: must be a text of 1 to 512")


@pytest.mark.parametrize("prompt", ["\ud800", "a\0b", "", 7, {"a": 1}])
def test_a_prompt_that_is_no_text_is_named(prompt: object) -> None:
    assert "prompt" in complaint({"prompt": prompt})
