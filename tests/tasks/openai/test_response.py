"""Results as OpenAI writes them."""

from typing import Any

from llama_herd.tasks.events import Usage
from llama_herd.tasks.openai.request import CHAT, COMPLETIONS, Endpoint
from llama_herd.tasks.openai.response import response_body
from llama_herd.tasks.result import Choice, Result

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
    return response_body(endpoint, "j", "tales", RESULT.model_copy(update=fields))


def test_a_completion_has_text_and_usage() -> None:
    found = body(COMPLETIONS)
    assert found["object"] == "text_completion"
    assert found["model"] == "tales"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert found["choices"] == [{"index": 0, "text": " wörld", "logprobs": None, "finish_reason": "stop"}]


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
