"""Outputs of jobs as the object that the Responses API answers with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.http_status import http_status
from llama_herd.tasks.openai.logprobs import logprobs_of
from llama_herd.tasks.openai.request_body import CHAT
from llama_herd.tasks.openai.responses.body import PREVIOUS, in_their_words
from llama_herd.tasks.protocol.events import End, Failure, FinishReason, Pieces, Token, ToolCall, Usage
from llama_herd.tasks.protocol.job import is_job_id
from llama_herd.tasks.protocol.result import Output, Result

PREFIX = "resp_"


def job_id_of(name: object) -> str | None:
    """The id of the job whose answer is named so; None if none can be."""
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return None
    job_id = name.removeprefix(PREFIX)
    return job_id if is_job_id(job_id) else None


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
STATUSES: Mapping[FinishReason, Status] = {
    "stop": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "deadline": "failed",
    "error": "failed",
}

#: Fields of a request that its answer repeats, and what they are where it is read later: a job's record tells
#: operators alone what was asked.
REPEATED: Mapping[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    PREVIOUS: None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
}


def repeated(body: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer repeats of the body of its request."""
    return {name: body[name] for name in REPEATED if body.get(name) is not None}


@dataclass(frozen=True)
class Said:
    """All that one output has said so far. scores: of all its tokens, if they were asked for."""

    reasoning: str = ""
    content: str = ""
    calls: Sequence[ToolCall] = ()
    scores: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, output: Output, pieces: Pieces | None) -> Self:
        calls = output.tool_calls or ()
        return cls(output.reasoning or "", output.answer, calls, scores_of(output, pieces))

    def items(self, job_id: str, status: Status) -> list[dict[str, Any]]:
        """The items of the output: what it thought, what it said, and its calls.

        An answer that is none has no items unless it has said something; any other has one at least.
        """
        found = [reasoning_item(job_id, self.reasoning)] if self.reasoning else []
        if self.content or not (found or self.calls or status in ("failed", "cancelled")):
            found.append(message_item(job_id, "completed", [text_part(self.content, self.scores)]))
        found += (call_item(call, "completed") for call in self.calls)
        if status != "completed" and found:
            found[-1]["status"] = "incomplete"
        return found


@dataclass(frozen=True)
class ResponseFrame:
    """What all objects of one answer share. asked: what they repeat of the request."""

    job_id: str
    model: str | None
    created_s: int
    asked: Mapping[str, Any] = field(default_factory=dict)

    def response(
        self,
        status: Status,
        items: Sequence[Mapping[str, Any]] = (),
        end: Result | End | None = None,
        cached_tokens: int | None = None,
    ) -> dict[str, Any]:
        """The object. end: how the job ended, if it has."""
        usage = None if end is None or end.usage is None else usage_object(end.usage, cached_tokens)
        return {
            "id": PREFIX + self.job_id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": None if end is None else _error_of(end.finish_reason, end.error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "usage": usage,
            **REPEATED,
            **self.asked,
            "output": list(items),
        }

    def whole(self, result: Result) -> dict[str, Any]:
        """The object of a job that has ended, with the first of its outputs."""
        status = STATUSES[result.finish_reason]
        said = Said.of((result.choices or (result,))[0], result.pieces)
        return self.response(status, said.items(self.job_id, status), result, result.cached_tokens)


def reasoning_item(job_id: str, text: str | None, status: str = "completed") -> dict[str, Any]:
    """What the model thought, told as it is. text: None if it has not come so far."""
    content = [] if text is None else [reasoning_part(text)]
    return {"type": "reasoning", "id": f"rs_{job_id}", "summary": [], "content": content, "status": status}


def message_item(job_id: str, status: str, content: Sequence[Any]) -> dict[str, Any]:
    """What the model said."""
    return {
        "type": "message",
        "id": f"msg_{job_id}",
        "status": status,
        "role": "assistant",
        "content": list(content),
    }


def call_item(call: ToolCall, status: str, arguments: str | None = None) -> dict[str, Any]:
    """A call that the model asks for. arguments: in place of the call's own."""
    return {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if arguments is None else arguments,
        "status": status,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def text_part(text: str, scores: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(scores)}


def scores_of(scored: Output | Token, pieces: Pieces | None) -> list[dict[str, Any]]:
    """The scores of tokens; none if nobody asked for them."""
    found = logprobs_of(CHAT, scored, pieces)
    return [] if found is None else found["content"]


def usage_object(usage: Usage, cached_tokens: int | None) -> dict[str, Any]:
    """The tokens of a job. What nobody counts is 0: clients want a number."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _error_of(reason: FinishReason, failure: Failure | None) -> dict[str, Any] | None:
    """Why a job has failed, by one of OpenAI's codes; `type` is ours."""
    if reason == "deadline":
        late = DeadlineExceeded()
        failure = Failure(code="deadline", message=str(late), retriable=False)
    if failure is None:
        return None
    status = http_status(GenerationError(failure.code, failure.message, failure.retriable))
    code = "invalid_prompt" if status < 500 else "server_error"
    return {"code": code, "message": in_their_words(failure.message), "type": failure.code}
