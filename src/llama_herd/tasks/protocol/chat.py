"""Messages of a conversation, and the variables that a chat template may get with them, within bounds."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from llama_herd.tasks.protocol.json_values import JsonObject, json_text
from llama_herd.tasks.protocol.strict_model import MaxItems, StrictModel, check_length, check_text

#: Turns of a conversation, of whatever length: each takes a worker some time.
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_TOOLS = 128
MAX_DOCUMENTS = 256
MAX_OPTIONS = 32
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
