"""A job: one prompt, how to sample, and until when.

All jobs from outside pass through `GenerationJob.parse`. It reports every wrong field at once, and its
messages never contain a prompt or any other text of the job.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.chat import (
    MAX_DOCUMENTS,
    MAX_MESSAGES,
    MAX_OPTIONS,
    MAX_TOOLS,
    ChatMessage,
    check_options,
)
from llama_herd.tasks.protocol.given import checked_kind
from llama_herd.tasks.protocol.json_values import JsonObject, check_json, json_text, num_bytes
from llama_herd.tasks.protocol.sampling import DEFAULT_MAX_TOKENS, SamplingParams
from llama_herd.tasks.protocol.strict_model import MaxItems, StrictModel, at_most, check_length, check_text
from llama_herd.tasks.protocol.structured_outputs import (
    FORM_FIELDS,
    OutputForm,
    ResponseFormat,
    StructuredOutputs,
    output_form,
)
from llama_herd.tasks.protocol.terms import Notices, Terms, fields_of
from llama_herd.tasks.protocol.tools import Tool, ToolChoice, check_choice_among
from llama_herd.tasks.protocol.wrong_fields import field_errors
from llama_herd.tasks.settings import Settings

#: Each prompt id counts as this many prompt bytes; an estimate takes this many bytes of text for one token.
PROMPT_ID_BYTES = 4
#: Most scores of tokens that a job may ask for: of each token of prompt and outputs, and of the likely tokens
#: beside it. They are joined and written in one go by whoever wants the whole result.
MAX_SCORES = 262_144
#: Most of these that a prompt may have, since all of them come in one event. A worker checks it.
MAX_PROMPT_SCORES = 131_072
SOURCES = ("prompt", "prompt_ids", "messages")
CHAT_FIELDS = (
    *("tools", "tool_choice", "parallel_tool_calls"),
    *("documents", "chat_template", "chat_template_kwargs", "conversation_from"),
)

_JOB_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


#: How the ids of batches' rows begin.
ROW_PREFIX = "batch-"


def is_job_id(text: object) -> bool:
    """Whether `text` can name a job: 1 to 128 letters, digits, dots, underscores, colons or dashes."""
    return isinstance(text, str) and _JOB_ID.fullmatch(text) is not None


def is_row_id(job_id: str) -> bool:
    """Whether a job counts as the row of a batch, by its id: no list and no webhook tells of its end."""
    return job_id.startswith(ROW_PREFIX)


def seed_of(job_id: str) -> int:
    """The seed of a job that sets none: the first 4 bytes of sha256(id), as a big-endian number."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4], "big")


class Prompt(StrictModel):
    """What a job is to continue: `prompt`, `prompt_ids` or `messages`, and what goes with these."""

    v: Literal[1] = Field(default=1, description="Version of the protocol.")
    prompt: str | None = Field(default=None, description="The text to continue, UTF-8 without NUL.")
    prompt_ids: (
        Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(strict=False, fail_fast=True)]
        | None
    ) = Field(default=None, description="The prompt as token ids of the model. Nothing is added to them.")
    messages: Annotated[tuple[ChatMessage, ...], MaxItems(MAX_MESSAGES)] | None = Field(
        default=None, description="A conversation. The model's own chat template turns it into a prompt."
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="false: nothing is added to `prompt`, though the model's file says that texts begin with "
        "BOS.",
    )
    echo: bool | None = Field(
        default=None,
        description="The event `started` has the ids of the prompt, and the text of each. With it "
        "`max_tokens` may be 0.",
    )
    tokenizer_info: bool | None = Field(
        default=None,
        description="With `echo`: the event `started` also has the names of the model's control tokens and "
        "its chat template, from a worker with HERD_TOKENIZER_INFO.",
    )
    tools: Annotated[tuple[Tool, ...], MaxItems(MAX_TOOLS)] | None = Field(
        default=None,
        description="Tools that the model may call, as OpenAI's of the type `function`: their names, and "
        "JSON schemas of their arguments. The template describes them to the model.",
    )
    tool_choice: ToolChoice | None = Field(
        default=None,
        description="`auto`, or absent: the model may call tools. `required`: its output is a call. "
        "`none`: the template gets no tools. An object that names a tool: its output is a call to that one.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="False: the output has one call at most. Absent: true."
    )
    documents: Annotated[tuple[JsonObject, ...], MaxItems(MAX_DOCUMENTS)] | None = Field(
        default=None, description="Documents with `title` and `text`, for the template."
    )
    chat_template: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of one of the model's templates. Absent: `tool_use` with tools, else `default`.",
    )
    chat_template_kwargs: Annotated[JsonObject, at_most(MAX_OPTIONS)] | None = Field(
        default=None,
        max_length=MAX_OPTIONS,
        description="Variables of the template's own, like `enable_thinking`.",
    )
    conversation_from: Annotated[int, Field(ge=0, lt=MAX_MESSAGES)] | None = Field(
        default=None,
        description="The first of `messages` that is told again where a later answer goes on from this one: "
        "those before it are for this job alone. Absent: no answer goes on from it.",
    )

    @field_validator("prompt_ids", mode="before")
    @classmethod
    def _check_num_ids(cls, value: Any, info: ValidationInfo) -> Any:
        limits: Settings | None = info.context
        return value if limits is None else check_length(value, limits.max_prompt_bytes // PROMPT_ID_BYTES)

    @field_validator(*SOURCES)
    @classmethod
    def _check_source(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        if not value:
            raise ValueError("must not be empty")
        if info.field_name == "messages":
            check_json([call for message in value for call in message.tool_calls or ()])
            length = num_bytes(text for message in value for text in message.texts)
        elif info.field_name == "prompt_ids":
            length = PROMPT_ID_BYTES * len(value)
        else:
            length = len(check_text(value).encode())
        _check_prompt_bytes(length, info)
        return value

    @field_validator("tools", "documents", "chat_template_kwargs")
    @classmethod
    def _check_json_length(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        if info.field_name == "chat_template_kwargs":
            check_options(value)
        check_json(value)
        _check_prompt_bytes(num_bytes([json_text(value)]), info)
        return value

    @field_validator("tool_choice")
    @classmethod
    def _check_tool_choice(
        cls, value: str | JsonObject | None, info: ValidationInfo
    ) -> str | JsonObject | None:
        if value is not None and "tools" in info.data:
            check_choice_among(value, info.data["tools"] or ())
        return value


class Wanted(StrictModel):
    """What a job is to bring: the form of its outputs, and how they are drawn."""

    response_format: ResponseFormat | None = Field(
        default=None,
        description="The form of the output: `text`, `json_object`, or `json_schema` with a `schema`.",
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None,
        description="The form of the output, by one of `json` (a schema), `regex`, `choice` (texts) and "
        "`grammar` (Lark or GBNF).",
    )
    sampling: SamplingParams = Field(
        default=SamplingParams(), description="How tokens are drawn, and when to stop."
    )

    @field_validator(*FORM_FIELDS)
    @classmethod
    def _check_form_length(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            _check_prompt_bytes(num_bytes([json_text(value)]), info)
        return value

    @property
    def output_form(self) -> OutputForm | None:
        """The form that the job asks of its output; None: any text."""
        return output_form(self.response_format, self.structured_outputs)


# The fields of its JSON stand in the order of these classes, from the right.
class GenerationJob(Notices, Wanted, Terms, Prompt):
    """One prompt to be continued.

    It has exactly one of `prompt`, `prompt_ids` and `messages`. `tools`, `tool_choice`,
    `parallel_tool_calls`, `documents`, `chat_template`, `chat_template_kwargs` and `conversation_from` go
    with `messages` only. Times are unix milliseconds.
    """

    @model_validator(mode="after")
    def _check_combinations(self, info: ValidationInfo) -> Self:
        if sum(source is not None for source in (self.prompt, self.prompt_ids, self.messages)) != 1:
            raise ValueError(SOURCE_MESSAGE)
        if self.add_special_tokens is not None and self.prompt is None:
            raise ValueError(
                "add_special_tokens needs prompt: nothing is added to ids, or to the text of a template"
            )
        if self.tokenizer_info and not self.echo:
            raise ValueError("tokenizer_info needs echo: it comes with what is told of the prompt")
        stray = next((name for name in CHAT_FIELDS if getattr(self, name) is not None), None)
        if self.messages is None and stray is not None:
            raise ValueError(f"{stray} needs messages: without a chat there is no template")
        if self.response_format is not None and self.structured_outputs is not None:
            raise ValueError("response_format cannot be combined with structured_outputs: give one of them")
        _check_prompt_bytes(self.num_prompt_bytes, info, " together with all that counts as prompt")
        if self.num_scores > MAX_SCORES:
            raise ValueError(
                f"asks for {self.num_scores} scores of tokens, n times those of its outputs and those of its "
                f"prompt, but may ask for at most {MAX_SCORES}. Fix: a lower n, max_tokens, logprobs, "
                "top_logprobs or prompt_logprobs"
            )
        return self

    @property
    def num_prompt_bytes(self) -> int:
        """Bytes of the prompt and what goes with it: tools, documents, template options, output form."""
        return PROMPT_ID_BYTES * len(self.prompt_ids or ()) + num_bytes(self._texts)

    @property
    def estimated_prompt_tokens(self) -> int:
        """Tokens of the prompt, estimated without a tokenizer."""
        return -(-self.num_prompt_bytes // PROMPT_ID_BYTES)

    @property
    def estimated_tokens(self) -> int:
        """Tokens of the prompt, estimated, and of all outputs at their longest."""
        return self.estimated_prompt_tokens + self.sampling.n * self.sampling.max_tokens

    @property
    def num_scores(self) -> int:
        """The scores that it asks for: of its prompt, estimated, and of its outputs at their longest."""
        asked = self.sampling
        of_prompt = (
            0 if asked.prompt_logprobs is None else self.estimated_prompt_tokens * (1 + asked.prompt_logprobs)
        )
        of_outputs = asked.n * asked.max_tokens * (1 + asked.top_logprobs) if asked.logprobs else 0
        return of_prompt + of_outputs

    @property
    def _texts(self) -> tuple[str, ...]:
        prompt = () if self.prompt is None else (self.prompt,)
        given = (
            *(self.tools, self.documents, self.chat_template_kwargs),
            *(self.response_format, self.structured_outputs),
        )
        extras = [json_text(value) for value in given if value is not None]
        return (*prompt, *(text for message in self.messages or () for text in message.texts), *extras)

    @classmethod
    def parse(cls, data: "GenerationJob | Mapping[str, Any] | str | bytes", settings: Settings) -> Self:
        """Check a job from outside against the schema and the limits in `settings`.

        `data` is a job, its fields, or its JSON. Without a tenant the job gets that of `settings`. Without
        `max_tokens` it gets the default, or the limit in `settings` if that is lower. It may also be a
        field of the job itself.
        Raises `InvalidJob` with one entry for each wrong field, and BadInput for what are no settings.
        """
        checked_kind("settings", settings, Settings, "a Settings")
        fields = _with_max_tokens({"tenant": settings.tenant, "sampling": {}, **fields_of(data)})
        if isinstance(fields["sampling"], Mapping):
            max_tokens = min(DEFAULT_MAX_TOKENS, settings.max_tokens_limit)
            fields["sampling"] = {"max_tokens": max_tokens, **fields["sampling"]}
        try:
            job = cls.model_validate(fields, context=settings)
        except ValidationError as error:
            found = field_errors(error, cls.model_fields)
            # Pydantic checks the whole job only if each field is right: here this error is found in any case.
            num_sources = sum(fields.get(name) is not None for name in SOURCES)
            if num_sources != 1 and not any(entry.field == "prompt" for entry in found):
                found.append(FieldError("prompt", SOURCE_MESSAGE))
            raise InvalidJob([*_empty_output_errors(fields), *found]) from None
        if not job.sampling.max_tokens and (wrong := _empty_output_errors(job.model_dump())):
            raise InvalidJob(wrong)
        return job


SOURCE_MESSAGE = "exactly one of prompt, prompt_ids and messages is required"
_EMPTY_OUTPUT_MESSAGE = "must be at least 1, got 0: only a job with echo or prompt_logprobs needs no output"


def _empty_output_errors(fields: Mapping[str, Any]) -> list[FieldError]:
    """Refuse a `max_tokens` of 0, unless the job has `echo` or `prompt_logprobs`."""
    sampling = fields["sampling"]
    if not isinstance(sampling, Mapping) or sampling.get("max_tokens") != 0:
        return []
    if fields.get("echo") or sampling.get("prompt_logprobs") is not None:
        return []
    return [FieldError("sampling.max_tokens", _EMPTY_OUTPUT_MESSAGE)]


def _check_prompt_bytes(num_bytes: int, info: ValidationInfo, what: str = "") -> None:
    limits: Settings | None = info.context
    if limits is not None and num_bytes > limits.max_prompt_bytes:
        raise ValueError(f"must be at most {limits.max_prompt_bytes} bytes{what}, got {num_bytes}")


def _with_max_tokens(fields: dict[str, Any]) -> dict[str, Any]:
    """Move a `max_tokens` of the job itself, where OpenAI and others have it, into `sampling`."""
    sampling = fields["sampling"]
    if isinstance(sampling, SamplingParams):
        sampling = sampling.model_dump(exclude_unset=True)
    if "max_tokens" not in fields or not isinstance(sampling, Mapping) or "max_tokens" in sampling:
        return fields
    rest = {name: value for name, value in fields.items() if name != "max_tokens"}
    return rest | {"sampling": {**sampling, "max_tokens": fields["max_tokens"]}}
