"""Outcomes as OpenAI writes them."""

import json
from typing import Any

import pytest

from llama_herd.tasks.batch.answers import error_line, output_line
from llama_herd.tasks.batch.row_request import RowRequest
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.openai.embeddings import BatchEndpoint
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS
from llama_herd.tasks.openai.responses.body import RESPONSES
from llama_herd.tasks.protocol.events import Failure, FinishReason, Usage
from llama_herd.tasks.protocol.result import Result


def result(finish_reason: FinishReason = "stop", **fields: Any) -> Result:
    return Result(
        **{
            "job": "j",
            "text": " wörld",
            "ids": (5, 6),
            "finish_reason": finish_reason,
            "usage": Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5),
            "error": None,
            "seed": 1,
            "attempts": 1,
            "worker": "w",
            "timings": None,
            **fields,
        }
    )


def item(endpoint: BatchEndpoint, **fields: Any) -> BatchItem:
    row = BatchRow(4, tag=RowRequest("mine", endpoint))
    return BatchItem(row, "batch-r-4", "tales", result(**fields))


def body(endpoint: BatchEndpoint, **fields: Any) -> dict[str, Any]:
    line = output_line("r", item(endpoint, **fields))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    assert list(found) == ["id", "custom_id", "response", "error"]
    assert (found["custom_id"], found["error"], found["response"]["status_code"]) == ("mine", None, 200)
    content: dict[str, Any] = found["response"]["body"]
    return content


def test_a_row_that_ended_well_has_the_body_of_its_endpoint() -> None:
    assert body(COMPLETIONS)["object"] == "text_completion"
    assert body(CHAT)["object"] == "chat.completion"
    assert body(RESPONSES)["output"][0]["content"][0]["text"] == " wörld"
    assert body(RESPONSES)["id"] == "resp_batch-r-4"
    assert (body(CHAT)["id"], body(CHAT)["model"]) == ("chatcmpl-batch-r-4", "tales")


def test_a_line_is_one_line_to_every_reader() -> None:
    text = "\n\r\x0b\x1c\x85\u2028\u2029"
    line = output_line("r", item(COMPLETIONS, text=text)).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["response"]["body"]["choices"][0]["text"] == text


def test_a_failed_row_has_its_line_and_the_reason() -> None:
    error = Failure(code="prompt_too_long", message="600 tokens, 512 fit")
    line = error_line("r", item(COMPLETIONS, finish_reason="error", error=error))
    assert json.loads(line) == {
        "id": "batch_req_r-4",
        "line": 4,
        "custom_id": "mine",
        "response": None,
        "error": {"code": "prompt_too_long", "message": "600 tokens, 512 fit"},
    }


@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
def test_a_row_that_was_ended_early_failed(reason: FinishReason) -> None:
    failure = item(CHAT, finish_reason=reason).failure
    assert failure is not None
    assert failure.code == reason
