"""Outcomes as OpenAI writes them."""

import json
from typing import Any

import pytest

from llama_herd.tasks.client.batch.row import BatchItem, BatchRow
from llama_herd.tasks.events import Failure, FinishReason, Usage
from llama_herd.tasks.result import Choice, Result
from llama_herd.worker.batch.openai_body import CHAT, COMPLETIONS, Endpoint
from llama_herd.worker.batch.reply import error_line, output_line
from llama_herd.worker.batch.request import Request


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


def item(endpoint: Endpoint, **fields: Any) -> BatchItem:
    row = BatchRow(4, tag=Request("mine", endpoint))
    return BatchItem(row, "batch-r-4", "tales", result(**fields))


def body(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    line = output_line("batch_req_r-4", item(endpoint, **fields))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    assert list(found) == ["id", "custom_id", "response", "error"]
    assert (found["custom_id"], found["error"], found["response"]["status_code"]) == ("mine", None, 200)
    content: dict[str, Any] = found["response"]["body"]
    return content


def test_a_completion_has_text_and_usage() -> None:
    found = body(COMPLETIONS)
    assert found["object"] == "text_completion"
    assert found["model"] == "tales"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert found["choices"] == [{"index": 0, "text": " wörld", "logprobs": None, "finish_reason": "stop"}]


def test_a_line_is_one_line_to_every_reader() -> None:
    text = "\n\r\x0b\x1c\x85\u2028\u2029"
    line = output_line("batch_req_r-4", item(COMPLETIONS, text=text)).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["response"]["body"]["choices"][0]["text"] == text


def test_a_chat_has_a_message() -> None:
    found = body(CHAT)
    message = {"role": "assistant", "content": " wörld", "refusal": None}
    assert found["object"] == "chat.completion"
    assert found["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]


def test_all_outputs_of_a_job_are_choices() -> None:
    choices = tuple(Choice(index=n, text=f"{n}", ids=(n,), finish_reason="length") for n in range(3))
    found = body(COMPLETIONS, choices=choices)["choices"]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in found] == [
        (n, f"{n}", "length") for n in range(3)
    ]


TOPS = {"logprobs": (-0.5, -1.5), "top_logprobs": (((5, -0.5), (9, -2.0)), ((7, -1.0), (8, -1.2)))}


def test_log_probabilities_have_the_form_of_their_endpoint() -> None:
    found = body(COMPLETIONS, **TOPS)["choices"][0]["logprobs"]
    assert found["tokens"] == ["token_id:5", "token_id:6"]
    assert found["token_logprobs"] == [-0.5, -1.5]
    assert found["top_logprobs"][0] == {"token_id:5": -0.5, "token_id:9": -2.0}
    content = body(CHAT, **TOPS)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content] == [("token_id:5", -0.5), ("token_id:6", -1.5)]
    assert content[1]["top_logprobs"][0] == {"token": "token_id:7", "logprob": -1.0, "bytes": None}


def test_the_prompts_log_probabilities_stand_with_each_choice() -> None:
    found = body(COMPLETIONS, prompt_logprobs=(-0.1,), top_prompt_logprobs=(((3, -0.05),),))
    assert found["choices"][0]["prompt_logprobs"] == [None, {"logprob": -0.1, "top": {"token_id:3": -0.05}}]


def test_a_failed_row_has_its_line_and_the_reason() -> None:
    error = Failure(code="prompt_too_long", message="600 tokens, 512 fit")
    line = error_line("batch_req_r-4", item(COMPLETIONS, finish_reason="error", error=error))
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
