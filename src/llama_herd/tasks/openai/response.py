"""A job's result as the body of an OpenAI response."""

from importlib.metadata import version
from time import time
from typing import Any

from llama_herd.tasks.events import FinishReason, Pieces, ToolCall
from llama_herd.tasks.openai.echo import Echo
from llama_herd.tasks.openai.logprobs import logprobs_of, named
from llama_herd.tasks.openai.request import CHAT, COMPLETIONS, Endpoint
from llama_herd.tasks.result import Choice, Result

#: Which version of ours made an answer.
FINGERPRINT = f"llama-herd-{version('llama-herd')}"


def response_body(endpoint: Endpoint, job_id: str, model: str | None, result: Result) -> dict[str, Any]:
    """The result in the form of its endpoint."""
    is_chat = endpoint == CHAT
    make = _chat_choice if is_chat else _completion_choice
    choices = [make(choice, result.pieces) for choice in _choices(result)]
    echo = None if is_chat else Echo.of_result(result)
    if echo is not None:
        choices = [echo.before(choice) for choice in choices]
    elif result.prompt_logprobs is not None:
        for choice in choices:
            choice["prompt_logprobs"] = _prompt_logprobs(result)
    return {
        "id": answer_id(endpoint, job_id),
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time()),
        "model": model,
        "choices": choices,
        "usage": None if result.usage is None else result.usage.model_dump(),
        "system_fingerprint": FINGERPRINT,
    }


def answer_id(endpoint: Endpoint, job_id: str) -> str:
    """The id of a job's answer."""
    return f"{'chatcmpl' if endpoint == CHAT else 'cmpl'}-{job_id}"


def _choices(result: Result) -> tuple[Choice, ...]:
    """All outputs, also when there is only one."""
    if result.choices is not None:
        return result.choices
    fields = Choice.model_fields.keys() - {"index"}
    return (Choice.model_construct(index=0, **{name: getattr(result, name) for name in fields}),)


def _completion_choice(choice: Choice, pieces: Pieces | None) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs_of(COMPLETIONS, choice, pieces),
        **_reasons(choice),
    }


def _chat_choice(choice: Choice, pieces: Pieces | None) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": _message(choice),
        "logprobs": logprobs_of(CHAT, choice, pieces),
        **_reasons(choice),
    }


def _message(choice: Choice) -> dict[str, Any]:
    """The message of an output as OpenAI writes it. Content is null if the model only calls tools."""
    calls = choice.tool_calls or ()
    content = choice.text if choice.content is None else choice.content
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if calls:
        message |= {"content": content or None, "tool_calls": [call_object(call) for call in calls]}
    return message


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI writes it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def finish_reason_of(reason: FinishReason, *, has_calls: bool) -> str:
    """Why an output ended, in OpenAI's words."""
    return "tool_calls" if has_calls and reason == "stop" else reason


def _reasons(choice: Choice) -> dict[str, Any]:
    """Why the output ended. `stop_reason` is vLLM's: the stop string or token id that matched, else null."""
    has_stopped = choice.finish_reason == "stop"
    return {
        "finish_reason": finish_reason_of(choice.finish_reason, has_calls=bool(choice.tool_calls)),
        "stop_reason": choice.stop_reason if has_stopped else None,
    }


def _prompt_logprobs(result: Result) -> list[dict[str, Any] | None]:
    """vLLM's addition: the scores of each prompt token except the first, and the likeliest tokens there."""
    logprobs = result.prompt_logprobs or ()
    tops = result.top_prompt_logprobs or ((),) * len(logprobs)
    rows = zip(logprobs, tops, strict=False)
    return [None, *({"logprob": own, "top": named(top, result.pieces)} for own, top in rows)]
