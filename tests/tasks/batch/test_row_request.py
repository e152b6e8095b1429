"""What a line asks for: OpenAI's fields as ours, and every wrong one named."""

from typing import Any

import pytest

from llama_herd.errors import MAX_FIELD_ERRORS
from llama_herd.tasks.batch.row_options import EmbedOptions, RowOptions
from llama_herd.tasks.batch.row_request import RequestReader, RowRequest
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.client.batch.row_feed import BULK
from llama_herd.tasks.openai.embeddings import BATCH_ENDPOINTS, EMBEDDINGS
from llama_herd.tasks.openai.ranks import RERANK
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS
from llama_herd.tasks.openai.responses.body import RESPONSES
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.settings import Settings

OPTIONS = RowOptions()
MESSAGES = [{"role": "user", "content": "secret"}]


def read(fields: dict[str, Any], options: RowOptions = OPTIONS) -> BatchRow:
    return RequestReader(Settings(), options, "r").read(SourceRow(1, fields))


def openai(url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, RESPONSES: {"input": "secret"}}
    source = sources.get(url, {"prompt": "secret"})
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


def test_every_wrong_field_of_a_body_is_named() -> None:
    assert complaint(openai(CHAT, temperature=7, colour=1) | {"method": "GET"}) == (
        "method: must be POST; body.colour: not supported; "
        "body.temperature: input should be less than or equal to 2, got 7"
    )
    assert complaint(openai(n=2, temperature=0)).startswith("body: n must be 1 when temperature is 0")


@pytest.mark.parametrize("url", BATCH_ENDPOINTS)
def test_no_row_in_openais_form_says_how_urgent_it_is(url: str) -> None:
    """A key of the gateway may have a limit, and rows of a batch let all other jobs pass."""
    texts: dict[str, Any] = {EMBEDDINGS: {"input": "a"}, RERANK: {"query": "a", "documents": ["b"]}}
    line: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": url}
    body = texts.get(url) or openai(url)["body"]
    for unsaid in (body, {**body, "priority": None}):  # clients send null for what is not set
        found = read(line | {"body": unsaid}).job
        assert isinstance(found, GenerationJob | EmbeddingJob | RankingJob)
        assert found.priority == BULK["priority"]
    for said in (1, -10, "1"):
        assert complaint(line | {"body": {**body, "priority": said}}) == "body.priority: not supported"


def test_a_row_of_the_responses_api_is_the_chat_that_it_says() -> None:
    given = {"temperature": 0.5, "stop": "x"}
    asked = job(openai(RESPONSES, max_output_tokens=7, stream=False, background=False, **given))
    assert asked == job(openai(CHAT, max_tokens=7, **given))
    assert complaint(openai(RESPONSES, stream=True, background=True, max_output_tokens=-1)) == (
        "body.stream: only supported as false: this holds anyway; "
        "body.background: only supported as false: only the gateway's own route has it; "
        "body.max_output_tokens: input should be greater than or equal to 0, got -1"
    )
    assert complaint(openai(RESPONSES, previous_response_id="resp_a")) == (
        "body.previous_response_id: not supported: only the gateway's own route has it. Fix: all items so "
        "far in `input`"
    )


@pytest.mark.parametrize("form", ["plain", "openai", "text"])
def test_a_line_with_more_wrong_fields_than_are_named_says_so(form: str) -> None:
    lines = {"plain": {"prompt": "x"}, "openai": openai(), "text": {"text": "x"}}
    options = RowOptions(embed=EmbedOptions()) if form == "text" else OPTIONS
    for num in (MAX_FIELD_ERRORS, MAX_FIELD_ERRORS + 1, 1000):
        failure = read({**lines[form], **{f"x{number}": 1 for number in range(num)}}, options).failure
        assert failure is not None
        assert ("more errors" in failure.message) == (num > MAX_FIELD_ERRORS)


def test_a_line_of_the_wrong_form_names_all_that_is_wrong() -> None:
    wrong = {"method": "GET", "url": "/v1/moderations", "body": [], "colour": 1}
    message = complaint(wrong)
    for name in (
        "colour: unknown",
        "method: must be POST",
        "url: must be /v1/",
        "body: must be",
        "custom_id: ",
    ):
        assert name in message


@pytest.mark.parametrize("url", [COMPLETIONS, EMBEDDINGS, RERANK])
@pytest.mark.parametrize("wrong", [None, 5, "secret", ["secret"]])
def test_what_is_no_object_is_named_alone(wrong: Any, url: str) -> None:
    assert complaint(openai(url) | {"body": wrong}) == "body: must be a JSON object"
    if wrong is not None:
        assert complaint({"prompt": "x", "sampling": wrong}) == "sampling: must be a JSON object"


def test_a_plain_line_has_the_fields_of_our_job_and_may_leave_sampling_out() -> None:
    row = read(
        {"prompt": "secret", "max_tokens": 5, "sampling": {"top_k": 3}, "priority": 2, "custom_id": "x"}
    )
    assert row.tag == RowRequest("x", COMPLETIONS)
    assert isinstance(row.job, GenerationJob)
    assert (row.job.sampling.max_tokens, row.job.sampling.top_k, row.job.priority) == (5, 3, 2)
    assert read({"messages": MESSAGES}).tag == RowRequest("line-1", CHAT)
    assert "temprature: unknown field. Did you mean sampling.temperature?" in complaint({"temprature": 1})
    assert "costum_id: unknown field. Did you mean custom_id?" in complaint({"body": {}, "costum_id": "x"})
    assert complaint({"prompt": "secret", "max_tokens": 0, "colour": 1}) == (
        "sampling.max_tokens: must be at least 1, got 0: "
        "only a job with echo or prompt_logprobs needs no output"
        "; colour: unknown field"
    )


def test_a_row_has_no_webhook_since_nobody_would_hear_of_its_end() -> None:
    found = complaint({"prompt": "secret", "webhook": "https://app.example.com/hook"})
    assert found.startswith("webhook: no webhook tells of the end of a batch's row. Fix: leave it out")


def test_either_form_of_a_line_says_how_often_it_is_tried_again() -> None:
    fields: dict[str, Any] = {"retries": 3, "retry_backoff_s": 0.5}
    for line in ({"prompt": "x", **fields}, openai(**fields), openai()):
        found = job(line)
        wanted = (None, None) if line == openai() else (3, 0.5)
        assert (found.retries, found.retry_backoff_s) == wanted
    assert "body.retries: " in complaint(openai(retries=21))
    assert complaint({"prompt": "x", "retries": -1}).startswith("retries: ")


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
    assert second.failure.message == "custom_id: must be unique, but lines 3 and 9 have the same"


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("", "0"),
        (None, "none"),
        (7, "the number 7. Fix: put it into quotes"),
        (True, "true"),
        (["secret"], "a list or an object"),
        ("x" * 1513, "1,513"),
        ("\ud800", "one with half a pair of surrogates"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused(name: object, got: str) -> None:
    told = f"custom_id: must be a string of 1 to 512 characters, got {got}"
    assert complaint(openai() | {"custom_id": name}) == told


@pytest.mark.parametrize("prompt", ["\ud800", "a\0b", "", 7, {"a": 1}])
def test_a_prompt_that_is_no_text_is_named(prompt: object) -> None:
    assert "prompt" in complaint({"prompt": prompt})
