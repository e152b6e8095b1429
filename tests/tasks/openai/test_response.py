"""Results as OpenAI writes them."""

import json
from typing import Any

import pytest

from llama_herd.tasks.openai.answer_schema import ChatCompletion, Completion
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, ENDPOINTS, Endpoint
from llama_herd.tasks.openai.response import response_pieces
from llama_herd.tasks.protocol.events import ToolCall, Usage
from llama_herd.tasks.protocol.result import Result, ResultChoice

RESULT = Result(
    job="j",
    text=" wörld",
    ids=(5, 6),
    finish_reason="stop",
    usage=Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5),
    error=None,
    seed=1,
    attempts=1,
    worker="w",
    timings=None,
)


def body(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    """The answer, which is as the API's description says."""
    found: dict[str, Any] = json.loads(
        "".join(response_pieces(endpoint, "j", "tales", RESULT.model_copy(update=fields)))
    )
    described = ChatCompletion if endpoint == CHAT else Completion
    described.model_validate_json(json.dumps(found), strict=True)
    return found


def test_a_completion_has_text_and_usage() -> None:
    found = body(COMPLETIONS)
    assert found["object"] == "text_completion"
    assert found["model"] == "tales"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    ended = {"finish_reason": "stop", "stop_reason": None}
    assert found["choices"] == [{"index": 0, "text": " wörld", "logprobs": None, **ended}]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("cached", [0, 2])
def test_cached_tokens_are_told_if_they_were_counted(endpoint: Endpoint, cached: int) -> None:
    assert body(endpoint, cached_tokens=cached)["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


def test_a_chat_has_a_message() -> None:
    found = body(CHAT)
    message = {"role": "assistant", "content": " wörld", "refusal": None}
    assert found["object"] == "chat.completion"
    ended = {"finish_reason": "stop", "stop_reason": None}
    assert found["choices"] == [{"index": 0, "message": message, "logprobs": None, **ended}]


CALL = ToolCall(index=0, id="a1b2c3d4e", name="f", arguments='{"x": 1}')
WRITTEN = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    ("fields", "message", "finish_reason"),
    [
        ({"content": ""}, {"content": ""}, "stop"),
        ({"content": "hi", "reasoning": "hm"}, {"content": "hi", "reasoning_content": "hm"}, "stop"),
        ({"content": "", "tool_calls": (CALL,)}, {"content": None, "tool_calls": [WRITTEN]}, "tool_calls"),
        ({"content": "hi", "tool_calls": (CALL,)}, {"content": "hi", "tool_calls": [WRITTEN]}, "tool_calls"),
        (
            {"content": "", "tool_calls": (CALL,), "finish_reason": "length"},
            {"content": None, "tool_calls": [WRITTEN]},
            "length",
        ),
    ],
)
def test_a_chat_s_reasoning_and_calls_have_fields_of_their_own(
    fields: dict[str, Any], message: dict[str, Any], finish_reason: str
) -> None:
    (choice,) = body(CHAT, **fields)["choices"]
    assert choice["message"] == {"role": "assistant", "refusal": None, **message}
    assert choice["finish_reason"] == finish_reason


def test_all_outputs_of_a_job_are_choices() -> None:
    choices = tuple(ResultChoice(index=n, text=f"{n}", ids=(n,), finish_reason="length") for n in range(3))
    found = body(COMPLETIONS, choices=choices)["choices"]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in found] == [
        (n, f"{n}", "length") for n in range(3)
    ]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "written"),
    [
        ("stop", "END", "END"),
        ("stop", 7, 7),
        ("stop", None, None),
        # vLLM names no reason for these: `finish_reason` says it all.
        ("length", "max_tokens", None),
        ("length", "context", None),
    ],
)
def test_a_choice_names_the_stop_that_matched(
    endpoint: Endpoint, finish_reason: str, stop_reason: str | int | None, written: str | int | None
) -> None:
    (choice,) = body(endpoint, finish_reason=finish_reason, stop_reason=stop_reason)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish_reason, written)


def test_each_of_several_choices_names_its_own_stop() -> None:
    choices = tuple(
        ResultChoice(index=n, text="", ids=(), finish_reason="stop", stop_reason=stop)
        for n, stop in enumerate(("END", 7, None))
    )
    found = body(COMPLETIONS, choices=choices)["choices"]
    assert [one["stop_reason"] for one in found] == ["END", 7, None]


TOPS = {"logprobs": (-0.5, -1.5), "top_logprobs": (((5, -0.5), (9, -2.0)), ((7, -1.0), (8, -1.2)))}


def test_log_probabilities_have_the_form_of_their_endpoint() -> None:
    found = body(COMPLETIONS, **TOPS)["choices"][0]["logprobs"]
    assert found["tokens"] == ["token_id:5", "token_id:6"]
    assert found["token_logprobs"] == [-0.5, -1.5]
    assert found["top_logprobs"][0] == {"token_id:5": -0.5, "token_id:9": -2.0}
    content = body(CHAT, **TOPS)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content] == [("token_id:5", -0.5), ("token_id:6", -1.5)]
    assert content[1]["top_logprobs"][0] == {"token": "token_id:7", "logprob": -1.0, "bytes": None}


#: The second token is the first byte of a character of two.
PIECES = {5: " the", 6: "\xc3", 7: "q", 8: "\u0429", 9: " a"}


def test_a_score_has_the_text_and_the_bytes_of_its_token() -> None:
    found = body(CHAT, **TOPS, pieces=PIECES)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["bytes"]) for one in found] == [
        (" the", [32, 116, 104, 101]),
        ("\ufffd", [0xC3]),
    ]
    first, foreign = found[1]["top_logprobs"]
    assert (first["token"], first["bytes"]) == ("q", [113])
    assert (foreign["token"], foreign["bytes"]) == ("token_id:8", None)


def test_a_completion_says_where_its_tokens_begin() -> None:
    found = body(COMPLETIONS, **TOPS, pieces=PIECES)["choices"][0]["logprobs"]
    assert found["tokens"] == [" the", r"bytes:\xc3"]
    assert found["text_offset"] == [0, 4]
    assert found["top_logprobs"][0] == {" the": -0.5, " a": -2.0}


def test_the_prompts_log_probabilities_stand_with_each_choice() -> None:
    found = body(COMPLETIONS, prompt_logprobs=(-0.1,), top_prompt_logprobs=(((3, -0.05),),))
    assert found["choices"][0]["prompt_logprobs"] == [None, {"logprob": -0.1, "top": {"token_id:3": -0.05}}]


def test_offsets_count_the_prompt_in_front_of_an_output_also_where_it_has_no_scores() -> None:
    prompt = {"prompt_ids": (1, 2), "prompt_text": "Hello"}
    scores = {"logprobs": (-0.5, -0.25), "pieces": {5: " w", 6: "\u00c3\u00b6rld"}}
    (choice,) = body(COMPLETIONS, **prompt, **scores)["choices"]
    assert choice["text"] == "Hello wörld"
    assert choice["logprobs"]["text_offset"] == [5, 7]
    assert choice["logprobs"]["tokens"] == [" w", "örld"]
