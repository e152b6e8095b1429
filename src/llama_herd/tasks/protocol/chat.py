"""Messages of a conversation, and the JSON that a chat template may get with them, all within bounds."""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from llama_herd.tasks.protocol.strict_model import MaxItems, StrictModel, check_length, check_text

#: Turns of a conversation, of whatever length: each takes a worker some time.
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_TOOLS = 128
MAX_DOCUMENTS = 256
MAX_OPTIONS = 32
#: Of the JSON of one field: values of every kind, and how deep they lie in each other.
MAX_VALUES = 16_384
MAX_DEPTH = 32
#: Variables of a template that are a job's fields, or the model's control tokens.
OWN_VARIABLES = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt"),
        *(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")),
    )
)

#: Parts of a message elsewhere; a complaint may name no other word of a job.
OTHER_PARTS = (
    "image_url",
    "image",
    "input_audio",
    "audio",
    "video_url",
    "video",
    "file",
    "refusal",
    "thinking",
)

JsonObject = dict[str, Any]
Role = Literal["system", "developer", "user", "assistant", "tool"]

_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class TextPart(StrictModel):
    """A part of a message's content. There are no parts but texts here."""

    type: Literal["text"] = Field(description="Kind of the part.")
    text: str = Field(description="Its text.")


def _read_content(value: object) -> str | tuple[TextPart, ...] | None:
    """A message's content, with one complaint whichever of its forms it was meant to have."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, list | tuple):
        check_length(value, MAX_PARTS)
        return tuple(map(_read_part, value))
    elif value is not None:
        raise ValueError("must be a text or a list of parts")
    return value


def _read_part(part: object) -> TextPart:
    fields = part.model_dump() if isinstance(part, TextPart) else part
    kind = fields.get("type") if isinstance(fields, Mapping) else None
    if kind in OTHER_PARTS:
        raise ValueError(f"parts of type {kind} are not supported by this version: must be of type text")
    if not isinstance(fields, Mapping) or fields.keys() != {"type", "text"} or kind != "text":
        raise ValueError("parts must be of type text, with their text and nothing else")
    if not isinstance(fields["text"], str):
        raise ValueError("the text of a part must be a text")
    check_text(fields["text"])
    return TextPart(type="text", text=fields["text"])


class ChatMessage(StrictModel):
    """One turn of a conversation, with the fields that templates know for calls of tools."""

    role: Role = Field(description="Who speaks.")
    content: Annotated[str | tuple[TextPart, ...] | None, BeforeValidator(_read_content)] = Field(
        default=None, description="What is said: a text, or parts of one."
    )
    name: str | None = Field(default=None, description="Name of the speaker, for templates that use it.")
    tool_call_id: str | None = Field(default=None, description="Id of the tool call that this turn answers.")
    tool_calls: Annotated[tuple[JsonObject, ...], MaxItems(MAX_TOOLS)] | None = Field(
        default=None,
        description="Calls of tools that the assistant asked for, in the form that the template expects.",
    )
    reasoning_content: str | None = Field(
        default=None, description="What the model thought before it answered, for templates that repeat it."
    )

    @field_validator("name", "tool_call_id", "reasoning_content")
    @classmethod
    def _check_texts(cls, value: str | None) -> str | None:
        if value is not None:
            check_text(value)
        return value

    @model_validator(mode="after")
    def _check_has_content(self) -> Self:
        if self.content is None and self.tool_calls is None:
            raise ValueError("must have content")
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the message, with its tool calls as JSON."""
        content = self.content
        parts = (content,) if isinstance(content, str) else tuple(part.text for part in content or ())
        others = (self.name, self.tool_call_id, self.reasoning_content)
        calls = () if self.tool_calls is None else (json_text(self.tool_calls),)
        return (*parts, *(text for text in others if text is not None), *calls)


def check_options(options: JsonObject) -> None:
    """Raise ValueError unless these are variables that a job may give a template."""
    for name in options:
        if not _OPTION.fullmatch(name):
            raise ValueError("must have names of up to 64 letters, digits and underscores")
        if name in OWN_VARIABLES:
            raise ValueError(f"must not hold {name}, which is set by the job or the model")


def check_json(values: Collection[object]) -> None:
    """Raise ValueError unless these are JSON, and neither too many nor too deep. No more are looked at."""
    waiting, num_values = [(values, 0)], 0
    while waiting:
        items, depth = waiting.pop()
        num_values += len(items) * (2 if isinstance(items, Mapping) else 1)
        if num_values > MAX_VALUES:
            raise ValueError(f"must hold at most {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"must be at most {MAX_DEPTH} levels deep")
        for item in _values_and_names(items):
            if isinstance(item, dict | list | tuple):
                waiting.append((item, depth + 1))
            else:
                _check_scalar(item)


def json_text(value: object) -> str:
    """A value as JSON on one line: as its length is counted, and as answers have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def num_bytes(texts: Iterable[str]) -> int:
    """The length of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _values_and_names(values: Collection[object]) -> Iterator[object]:
    """The values in an array or object, and an object's names."""
    if isinstance(values, Mapping):
        if not all(isinstance(name, str) for name in values):
            raise ValueError("must have strings as names")
        yield from values.values()
    yield from values


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must hold finite numbers only")
    elif isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("must hold no number of over 64 bits")
    elif value is not None and not isinstance(value, int | float):
        raise ValueError("must be JSON")
