"""vLLM's requests about a tokenizer, as jobs that want nothing but what is told of their prompt."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.openai.answer_schema import AnswerModel
from llama_herd.tasks.openai.logprobs import token_text
from llama_herd.tasks.openai.other_fields import unknown_fields
from llama_herd.tasks.openai.request_body import CHAT, CHAT_SAME, COMPLETION_SAME, COMPLETIONS, RequestBody
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.priority import MAX_PRIORITY
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.tasks.settings import Settings

#: What each of these jobs is: nothing is computed, so it goes before all others.
_FIELDS: Mapping[str, Any] = {"echo": True, "priority": MAX_PRIORITY}
_SAMPLING: Mapping[str, Any] = {"max_tokens": 0}

#: Fields of a text, and of a conversation.
OF_TEXT = frozenset(("model", "prompt", "return_token_strs")) | COMPLETION_SAME
OF_CHAT = frozenset(("model", "messages", "tools", "return_token_strs")) | CHAT_SAME
#: Fields of a conversation with one value that they may have, as in a chat.
NEUTRAL = ("add_special_tokens", "add_generation_prompt", "continue_final_message")


class TokenizeAnswer(AnswerModel):
    """The token ids of a text or of a conversation."""

    count: int = Field(description="How many they are.")
    max_model_len: int = Field(description="Most tokens that prompt and output may have.")
    tokens: tuple[int, ...] = Field(description="The ids.")
    token_strs: tuple[str, ...] | None = Field(
        default=None, description="What each stands for, if asked for; control tokens stand for nothing."
    )


class DetokenizeAnswer(AnswerModel):
    """The text that token ids stand for."""

    prompt: str = Field(description="The text.")


class TokenizeRequest:
    """A request for ids. Raises InvalidJob with every wrong field. source: where it has its prompt."""

    def __init__(self, body: Mapping[str, Any], settings: Settings) -> None:
        given = {name: value for name, value in body.items() if value is not None}
        is_chat = "messages" in given
        known: frozenset[str] = OF_CHAT.union(NEUTRAL) if is_chat else OF_TEXT
        names = (known - {"return_token_strs"}) & given.keys()
        found = RequestBody(CHAT if is_chat else COMPLETIONS, {name: given[name] for name in names})
        if not isinstance(given.get("return_token_strs", False), bool):
            found.errors.append(FieldError("return_token_strs", "must be true or false"))
        if not is_chat and not isinstance(given.get("prompt", ""), str):
            found.errors.append(FieldError("prompt", "must be a text"))
        found.errors += unknown_fields(given, sorted(known))
        self.job = found.job(settings, _FIELDS, _SAMPLING)
        self.source = "messages" if is_chat else "prompt"
        self._has_texts = given.get("return_token_strs") is True

    def answer(self, result: Result) -> TokenizeAnswer:
        ids = result.prompt_ids or ()
        texts = tuple(token_text(one, result.pieces) for one in ids) if self._has_texts else None
        return TokenizeAnswer(
            count=len(ids), max_model_len=result.context_tokens or 0, tokens=ids, token_strs=texts
        )


class DetokenizeRequest:
    """A request for a text. Raises InvalidJob with every wrong field."""

    source = "tokens"

    def __init__(self, body: Mapping[str, Any], settings: Settings) -> None:
        errors = unknown_fields(body, ("model", "tokens"))
        given = {"model": body.get("model"), "prompt_ids": body.get("tokens")}
        try:
            self.job = GenerationJob.parse({**_FIELDS, **given, "sampling": _SAMPLING}, settings)
        except InvalidJob as error:
            errors += (_in_body(one) for one in error.fields)
        if errors:
            raise InvalidJob(errors)

    def answer(self, result: Result) -> DetokenizeAnswer:
        return DetokenizeAnswer(prompt=result.prompt_text or "")


class TokenizerInfoRequest:
    """A request for what the model's files say of its tokenizer. Raises InvalidJob for a wrong name."""

    source = "model"

    def __init__(self, model: str | None, settings: Settings) -> None:
        asked = {**_FIELDS, "prompt_ids": (0,), "tokenizer_info": True}
        self.job = GenerationJob.parse({**asked, "model": model, "sampling": _SAMPLING}, settings)

    def answer(self, result: Result) -> TokenizerInfo:
        if result.tokenizer_info is None:
            raise InvalidJob([FieldError("tokenizer_info", "the worker does not tell of its tokenizer")])
        return result.tokenizer_info


def _in_body(error: FieldError) -> FieldError:
    name = error.field.replace("prompt_ids", "tokens")
    return FieldError("tokens", "is required") if name == "prompt" else FieldError(name, error.message)
