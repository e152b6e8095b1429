"""Results of jobs as the body of an OpenAI response."""

from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import Any

from llama_herd.extras import own_version
from llama_herd.tasks.openai.logprobs import Echo, logprobs_of, top_by_name
from llama_herd.tasks.openai.request_body import CHAT, Endpoint
from llama_herd.tasks.protocol.events import FinishReason, ToolCall, Usage
from llama_herd.tasks.protocol.json_values import json_pieces, json_text
from llama_herd.tasks.protocol.result import Output, Result

_OWN_VERSION = f"llama-herd-{own_version()}"


def response_pieces(endpoint: Endpoint, job_id: str, model: str | None, result: Result) -> Iterator[str]:
    """The result in the form of its endpoint, as JSON in pieces.

    No more than one of the outputs is held, and none is written in one go.
    """
    yield f'{json_text(response_frame(endpoint, job_id, model, result))[:-1]},"choices":['
    for number, choice in enumerate(choices_of(endpoint, result)):
        yield "," if number else ""
        yield from json_pieces(choice)
    yield "]}"


def choices_of(endpoint: Endpoint, result: Result) -> Iterator[dict[str, Any]]:
    """The outputs in the form of an endpoint, each made when it is asked for."""
    is_chat = endpoint == CHAT
    echo = None if is_chat else Echo.from_result(result)
    for index, one in enumerate(result.choices or (result,)):
        said = {"message": _message(one)} if is_chat else {"text": one.text}
        scores = logprobs_of(endpoint, one, result.pieces)
        told = finish_reason_of(one.finish_reason, has_calls=bool(one.tool_calls))
        # vLLM's: the stop string or token id that matched.
        matched = one.stop_reason if one.finish_reason == "stop" else None
        ends = {"finish_reason": told, "stop_reason": matched}
        choice: dict[str, Any] = {"index": index, **said, "logprobs": scores, **ends}
        if echo is not None:
            choice = echo.before(choice)
        elif result.prompt_logprobs is not None:
            choice["prompt_logprobs"] = _prompt_logprobs(result)
        yield choice


def response_frame(endpoint: Endpoint, job_id: str, model: str | None, result: Result) -> dict[str, Any]:
    """An answer without its choices."""
    return {
        "id": answer_id(endpoint, job_id),
        "object": "chat.completion" if endpoint == CHAT else "text_completion",
        "created": int(time()),
        "model": model,
        "usage": usage_object(result.usage, result.cached_tokens),
        "system_fingerprint": fingerprint_of(result.weights_digests or ()),
    }


def fingerprint_of(weights_digests: Iterable[str]) -> str:
    """What made an answer: our version, and the weights as far as these are known."""
    return "-".join((_OWN_VERSION, *weights_digests))


def answer_id(endpoint: Endpoint, job_id: str) -> str:
    """The id of a job's answer."""
    return f"{'chatcmpl' if endpoint == CHAT else 'cmpl'}-{job_id}"


def _message(output: Output) -> dict[str, Any]:
    """The message of an output as OpenAI writes it. Content is null if the model only calls tools."""
    message: dict[str, Any] = {"role": "assistant", "content": output.answer, "refusal": None}
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    if output.tool_calls:
        calls = [call_object(call) for call in output.tool_calls]
        message |= {"content": output.answer or None, "tool_calls": calls}
    return message


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI writes it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def finish_reason_of(reason: FinishReason, *, has_calls: bool) -> str:
    """Why an output ended, in OpenAI's words."""
    return "tool_calls" if has_calls and reason == "stop" else reason


def _prompt_logprobs(result: Result) -> list[dict[str, Any] | None]:
    """vLLM's addition: the scores of each prompt token except the first, and the likeliest tokens there."""
    logprobs = result.prompt_logprobs or ()
    tops = result.top_prompt_logprobs or ((),) * len(logprobs)
    rows = zip(logprobs, tops, strict=False)
    return [None, *({"logprob": own, "top": top_by_name(top, result.pieces)} for own, top in rows)]


DETAILS = "prompt_tokens_details"


def usage_object(usage: Usage | None, cached_tokens: int | None) -> dict[str, Any] | None:
    """The tokens of one job; without details if its worker did not count those from the prefix cache."""
    if usage is None:
        return None
    details = {} if cached_tokens is None else {DETAILS: {"cached_tokens": cached_tokens}}
    return {**usage.model_dump(), **details}


def summed_usage(usages: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The sums over several jobs; None if one usage is not known, and without details if one has none."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    total = Usage(**{name: sum(usage[name] for usage in known) for name in Usage.model_fields})
    cached = [usage[DETAILS]["cached_tokens"] for usage in known if DETAILS in usage]
    return usage_object(total, sum(cached) if len(cached) == len(known) else None)


class JoinedAnswer:
    """The whole answer to a request: outputs are counted on from prompt to prompt, and tokens are added up.

    Each result is written as it is added, so that no more than one of them is held.
    """

    def __init__(self, endpoint: Endpoint, job_id: str, model: str | None) -> None:
        self._head = (endpoint, job_id, model)
        self._fields: dict[str, Any] = {}
        self._choices: list[bytes] = []
        self._usages: list[dict[str, Any] | None] = []

    @property
    def num_bytes(self) -> int:
        """The bytes of all outputs so far."""
        return sum(map(len, self._choices))

    def add(self, result: Result) -> None:
        """Write the outputs for the next prompt."""
        for choice in choices_of(self._head[0], result):
            numbered = {**choice, "index": len(self._choices)}
            self._choices.append("".join(json_pieces(numbered)).encode())
        frame = response_frame(*self._head, result)
        self._usages.append(frame.pop("usage"))
        self._fields = self._fields or frame

    def pieces(self) -> list[bytes]:
        """The answer as JSON."""
        fields = {**self._fields, "usage": summed_usage(self._usages)}
        between = [part for choice in self._choices for part in (b",", choice)]
        return [f'{json_text(fields)[:-1]},"choices":['.encode(), *between[1:], b"]}"]
