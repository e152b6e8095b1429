"""A job's result as the body of an OpenAI response."""

from importlib.metadata import version
from time import time
from typing import Any

from llama_herd.tasks.openai.request import CHAT, Endpoint
from llama_herd.tasks.result import Choice, Result

#: What log-probabilities call a token: a client knows its id, but has no vocabulary.
_TOKEN = "token_id:{}"

_FINGERPRINT = f"llama-herd-{version('llama-herd')}"


def response_body(endpoint: Endpoint, job_id: str, model: str | None, result: Result) -> dict[str, Any]:
    """The result in the form of its endpoint."""
    is_chat = endpoint == CHAT
    make = _chat_choice if is_chat else _completion_choice
    choices = [make(choice) for choice in _choices(result)]
    if result.prompt_logprobs is not None:
        for choice in choices:
            choice["prompt_logprobs"] = _prompt_logprobs(result)
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{job_id}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time()),
        "model": model,
        "choices": choices,
        "usage": None if result.usage is None else result.usage.model_dump(),
        "system_fingerprint": _FINGERPRINT,
    }


def _choices(result: Result) -> tuple[Choice, ...]:
    """All outputs, also when there is only one."""
    if result.choices is not None:
        return result.choices
    fields = Choice.model_fields.keys() - {"index"}
    return (Choice.model_construct(index=0, **{name: getattr(result, name) for name in fields}),)


def _completion_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": _completion_logprobs(choice),
        **_reasons(choice),
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _chat_logprobs(choice),
        **_reasons(choice),
    }


def _reasons(choice: Choice) -> dict[str, Any]:
    """Why the output ended. `stop_reason` is vLLM's: the stop string or token id that matched, else null."""
    has_stopped = choice.finish_reason == "stop"
    return {
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason if has_stopped else None,
    }


def _completion_logprobs(choice: Choice) -> dict[str, Any] | None:
    """Parallel lists, as completions have them. No offsets: a client does not know where a token begins."""
    if choice.logprobs is None:
        return None
    return {
        "tokens": [_TOKEN.format(token_id) for token_id in choice.ids],
        "token_logprobs": list(choice.logprobs),
        "top_logprobs": None if choice.top_logprobs is None else [_named(top) for top in choice.top_logprobs],
        "text_offset": None,
    }


def _chat_logprobs(choice: Choice) -> dict[str, Any] | None:
    """One object for each token, as chats have them."""
    if choice.logprobs is None:
        return None
    tops = choice.top_logprobs or ((),) * len(choice.ids)
    return {
        "content": [
            _token(token_id, logprob) | {"top_logprobs": [_token(*pair) for pair in top]}
            # The lists may differ in length, since others may have written into the job's stream.
            for token_id, logprob, top in zip(choice.ids, choice.logprobs, tops, strict=False)
        ],
        "refusal": None,
    }


def _prompt_logprobs(result: Result) -> list[dict[str, Any] | None]:
    """vLLM's addition: the scores of each prompt token except the first, and the likeliest tokens there."""
    logprobs = result.prompt_logprobs or ()
    tops = result.top_prompt_logprobs or ((),) * len(logprobs)
    return [None, *({"logprob": own, "top": _named(top)} for own, top in zip(logprobs, tops, strict=False))]


def _named(top: tuple[tuple[int, float], ...]) -> dict[str, float]:
    return {_TOKEN.format(token_id): logprob for token_id, logprob in top}


def _token(token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": _TOKEN.format(token_id), "logprob": logprob, "bytes": None}
