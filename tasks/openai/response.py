"""A job's result as the body of an answer of OpenAI's."""

from importlib.metadata import version
from time import time
from typing import Any

from llama_herd.tasks.openai.request import CHAT, Endpoint
from llama_herd.tasks.result import Choice, Result

#: How a token is named in log-probabilities: a client knows ids, and no vocabulary.
_TOKEN = "token_id:{}"

_FINGERPRINT = f"llama-herd-{version('llama-herd')}"


def response_body(endpoint: Endpoint, job_id: str, model: str | None, result: Result) -> dict[str, Any]:
    """What a job came to, in the form of its endpoint."""
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
        "finish_reason": choice.finish_reason,
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _chat_logprobs(choice),
        "finish_reason": choice.finish_reason,
    }


def _completion_logprobs(choice: Choice) -> dict[str, Any] | None:
    """Parallel lists, as completions have them; where a token begins in the text is not known here."""
    if choice.logprobs is None:
        return None
    return {
        "tokens": [_TOKEN.format(token_id) for token_id in choice.ids],
        "token_logprobs": list(choice.logprobs),
        "top_logprobs": None if choice.top_logprobs is None else [_named(top) for top in choice.top_logprobs],
        "text_offset": None,
    }


def _chat_logprobs(choice: Choice) -> dict[str, Any] | None:
    """An object a token, as chats have them."""
    if choice.logprobs is None:
        return None
    tops = choice.top_logprobs or ((),) * len(choice.ids)
    return {
        "content": [
            _token(token_id, logprob) | {"top_logprobs": [_token(*pair) for pair in top]}
            # No more than there are of each: others may have written into the job's stream.
            for token_id, logprob, top in zip(choice.ids, choice.logprobs, tops, strict=False)
        ],
        "refusal": None,
    }


def _prompt_logprobs(result: Result) -> list[dict[str, Any] | None]:
    """vLLM's addition: for each token of the prompt but the first, the likeliest in its place."""
    logprobs = result.prompt_logprobs or ()
    tops = result.top_prompt_logprobs or ((),) * len(logprobs)
    return [None, *({"logprob": own, "top": _named(top)} for own, top in zip(logprobs, tops, strict=False))]


def _named(top: tuple[tuple[int, float], ...]) -> dict[str, float]:
    return {_TOKEN.format(token_id): logprob for token_id, logprob in top}


def _token(token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": _TOKEN.format(token_id), "logprob": logprob, "bytes": None}
