"""The events of a job's stream and channel: `started` for each attempt, `token` or `vectors`, and one `end`.

Every event carries `seq`, dense from 1 within the job and across attempts. So a reader notices gaps, drops
repeated events, and resumes from any number. Readers ignore unknown fields.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self
from zlib import crc32

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic_core import to_json

from llama_herd.error_code import is_retriable
from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo

#: Written for a log-probability of minus infinity, which JSON does not have.
LOWEST_LOGPROB = -9999.0

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]

#: How an output ends that is what was asked for.
GOOD_ENDS: tuple[FinishReason, ...] = ("stop", "length")

#: With `stop`: the stop string or id that matched, None for an end of sequence. With `length`: `max_tokens`
#: or `context`, whichever was used up. Otherwise None.
StopReason = str | int | None


class Usage(BaseModel):
    """Number of tokens of the prompt and of the outputs."""

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int = Field(description="Tokens of the prompt.")
    completion_tokens: int = Field(description="Tokens of all outputs.")
    total_tokens: int = Field(description="Both together.")


class Failure(BaseModel):
    """Why a job ended with an error; `retriable` says whether the same job may succeed later."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="An ErrorCode. Readers pass on unknown codes.")
    message: str = Field(description="What went wrong, in a sentence.")
    retriable: bool = Field(
        default_factory=lambda given: is_retriable(given.get("code", "")),
        description="Absent: see the table of codes in docs/protocol.md.",
    )

    @classmethod
    def from_error(cls, error: GenerationError) -> Self:
        return cls(code=error.code, message=error.message, retriable=error.retriable)


class Timings(BaseModel):
    """Seconds from when the job was due: until prefill began, until the first token, until the end."""

    model_config = ConfigDict(frozen=True)

    queue_s: float | None = Field(
        default=None, description="Until its prompt was begun; null if it never was."
    )
    ttft_s: float | None = Field(default=None, description="Until the first token; null if there was none.")
    total_s: float | None = Field(default=None, description="Until the end.")


def finite(score: Any) -> Any:
    """A log-probability that JSON can write. A null, as other writers put it, is minus infinity too."""
    if score is None or (isinstance(score, float) and not isfinite(score)):
        return LOWEST_LOGPROB
    return score


LogProb = Annotated[float, BeforeValidator(finite)]
LogProbs = tuple[LogProb, ...]
#: For each position, pairs of id and log-probability.
TopLogProbs = tuple[tuple[tuple[int, LogProb], ...], ...]
#: What ids stand for, each byte as the character of its number: a token need not be whole characters.
Pieces = dict[int, str]


class ToolCall(BaseModel):
    """A call of a tool that the model asks for."""

    model_config = ConfigDict(frozen=True)

    index: int = Field(ge=0, description="Number of the call in its output, from 0.")
    id: str = Field(
        description="Names the call: 9 letters and digits that follow from job, output and index."
    )
    name: str = Field(description="Name of the tool.")
    arguments: str = Field(description="Its arguments: the text of a JSON object.")


#: Fields that tell an event from another one that has its number, after a part of the stream was lost.
_TELLING = {
    *("type", "epoch", "at_ms", "worker"),
    *("choice", "i", "ids", "text", "texts", "n", "finish_reason"),
}


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    v: Literal[1] = Field(default=1, description="Version of the protocol.")
    seq: int = Field(ge=1, description="Number of this event in its job, dense from 1.")
    job: str = Field(description="Id of the job.")
    epoch: int = Field(ge=0, description="Number of the claim that wrote it.")

    @property
    def cursor(self) -> str:
        """Where a reader goes on after this event: its number, and a mark of what it says."""
        return f"{self.seq}-{crc32(self.model_dump_json(include=_TELLING).encode()):08x}"

    def to_json(self) -> str:
        """The event as one line of JSON."""
        return self.model_dump_json()


class Started(_Event):
    """An attempt begins. A later attempt continues after the recorded tokens."""

    type: Literal["started"] = Field(default="started", description="Kind of the event.")
    attempt: int = Field(ge=1, description="Number of this attempt.")
    retries: int = Field(
        default=0, ge=0, description="How often the job was put back before it, since an attempt had failed."
    )
    at_ms: int = Field(description="When, by the clock of Redis.")
    worker: str = Field(description="Name of the worker.")
    model: str = Field(description="The model that the worker serves.")
    weights_digest: str | None = Field(
        default=None, description="A digest of its weights, the same wherever these are; null: not known."
    )
    seed: int = Field(description="The seed in effect, whether given or derived from the id.")
    n: int = Field(default=1, ge=1, le=1024, description="How many outputs the job has.")
    texts: int | None = Field(
        default=None, description="How many texts become vectors; null: the job is a generation."
    )
    dimensions: int | None = Field(
        default=None,
        description="With `texts`: numbers of a whole vector of the worker's model; null: not told.",
    )
    prompt_tokens: int | None = Field(
        default=None,
        description="Tokens of the prompt, or of all texts; null if they were not counted.",
    )
    cached_tokens: int | None = Field(
        default=None,
        description="How many of them this attempt found in the worker's prefix cache; null: not counted.",
    )
    # What follows is for a job with `echo`, in its first attempt: see PROMPT_FIELDS.
    prompt_ids: tuple[int, ...] | None = Field(default=None, description="Ids of the prompt.")
    prompt_text: str | None = Field(
        default=None,
        description="The prompt, if it was a text that was not cut; else what its ids stand for.",
    )
    context_tokens: int | None = Field(
        default=None, description="Most tokens that prompt and output may have at this worker."
    )
    pieces: Pieces | None = Field(
        default=None, description="What each id of the prompt stands for, as in a token event."
    )
    tokenizer_info: TokenizerInfo | None = Field(
        default=None, description="With `tokenizer_info`: what the model's files say of its tokenizer."
    )

    def to_json(self) -> str:
        """The event as one line of JSON, without a prompt unless it was asked for."""
        exclude = PROMPT_FIELDS if self.prompt_ids is None else set[str]()
        absent = {name for name in ("texts", "dimensions") if getattr(self, name) is None}
        return self.model_dump_json(exclude=exclude | absent)


#: Fields of Started that tell of the prompt.
PROMPT_FIELDS = {"prompt_ids", "prompt_text", "context_tokens", "pieces", "tokenizer_info"}
#: Fields of Token that tell of scores.
SCORE_FIELDS = {"logprobs", "top_logprobs", "prompt_logprobs", "top_prompt_logprobs", "pieces"}


class Token(_Event):
    """One or more tokens of one output, and the text that is now complete.

    `text` ends between characters: an incomplete character waits for a later event, so `text` may be empty.
    `ids` is empty if the event only brings what was held back. Where the output of a chat is read for
    reasoning and calls, the event says what of these has become certain with it; the output's last event says
    the rest.
    """

    type: Literal["token"] = Field(default="token", description="Kind of the event.")
    i: int = Field(ge=0, description="Index of the first of `ids` in its output.")
    ids: tuple[int, ...] = Field(description="Ids of the tokens.")
    text: str = Field(description="What they add to the text.")
    choice: int | None = Field(
        default=None, description="Number of the output; absent if the job has only one."
    )
    finish_reason: FinishReason | None = Field(
        default=None, description="Why the output ended; only in the last event of one of several outputs."
    )
    stop_reason: StopReason = Field(
        default=None, description="Beside `finish_reason`: like the one in `end`, for this output."
    )
    reasoning: str | None = Field(
        default=None, description="What the model goes on to think before it answers; absent: nothing."
    )
    content: str | None = Field(
        default=None,
        description="What it goes on to say: `text` without its reasoning and its calls. Absent: the text of "
        "this job is not read for these.",
    )
    tool_calls: tuple[ToolCall, ...] | None = Field(
        default=None, description="Calls of tools that are now complete; absent: none."
    )
    # All fields from here on are scores: see SCORE_FIELDS.
    logprobs: LogProbs | None = Field(
        default=None,
        description=f"One for each id, if requested. {LOWEST_LOGPROB} stands for minus infinity.",
    )
    top_logprobs: TopLogProbs | None = Field(
        default=None,
        description="For each id the most likely tokens at its position, as pairs of id and log-probability.",
    )
    prompt_logprobs: LogProbs | None = Field(
        default=None,
        description="One for each prompt token except the first, if requested; in the first token event.",
    )
    top_prompt_logprobs: TopLogProbs | None = Field(
        default=None, description="For each of these the most likely tokens at its position."
    )
    pieces: Pieces | None = Field(
        default=None,
        description="With scores: what each id in this event stands for, each byte as the character of its "
        "number (ISO 8859-1), since a token need not be whole characters.",
    )

    def to_json(self) -> str:
        """The event as one line of JSON, without the fields that are not used."""
        return self.model_dump_json(exclude_none=True)


def token_json(seq: int, job: str, epoch: int, fields: Mapping[str, Any]) -> str:
    """What `Token(...).to_json()` is with these fields, in Token's order and none of them None.

    Nothing is validated: a worker writes thousands of these a second.
    """
    event = {"v": 1, "seq": seq, "job": job, "epoch": epoch, "type": "token", **fields}
    return to_json(event).decode()


class Vectors(_Event):
    """Vectors of one or more texts, in the order in which they were computed."""

    type: Literal["vectors"] = Field(default="vectors", description="Kind of the event.")
    texts: tuple[int, ...] = Field(description="Numbers of the texts, from 0.")
    vectors: tuple[str, ...] = Field(
        default=(),
        description="A vector for each of them: its numbers as float32, little-endian, in Base64.",
    )


#: Fields of events that a worker needs no more, once they are recorded.
ANSWER_FIELDS = SCORE_FIELDS | PROMPT_FIELDS | {"vectors"}


def vectors_json(seq: int, job: str, epoch: int, vectors: Mapping[int, str]) -> str:
    """What `Vectors(...).to_json()` is, without validation. vectors: Base64 by the number of its text."""
    event = {"v": 1, "seq": seq, "job": job, "epoch": epoch, "type": "vectors"}
    return to_json({**event, "texts": list(vectors), "vectors": list(vectors.values())}).decode()


class End(_Event):
    """The one final event of a job."""

    type: Literal["end"] = Field(default="end", description="Kind of the event.")
    final: Literal[True] = Field(default=True, description="No event of the job comes after it.")
    finish_reason: FinishReason = Field(description="Why the job ended.")
    stop_reason: StopReason = Field(
        default=None,
        description="With `stop`: the stop string or id that matched, null for an end of sequence. With "
        "`length`: `max_tokens` or `context`, whichever was used up. Else, and with several outputs, null.",
    )
    n: int = Field(ge=0, description="Tokens recorded, or vectors.")
    usage: Usage | None = Field(
        default=None, description="Tokens of the whole job; null if no worker counted them."
    )
    text_sha256: str | None = Field(
        default=None,
        description="SHA-256 of all events' texts, joined in order, in UTF-8; null if no worker knew it.",
    )
    error: Failure | None = Field(default=None, description="What went wrong, if `finish_reason` is `error`.")
    attempts: int = Field(ge=0, description="Number of starts of the job.")
    worker: str | None = Field(
        default=None,
        description="The worker that ended it, or else the last one that had it; null if none had.",
    )
    timings: Timings | None = Field(
        default=None, description="Times of the whole job; null if no worker took them."
    )


Event = Annotated[Started | Token | Vectors | End, Field(discriminator="type")]

#: Validates and parses any event; docs/schemas/event.json is made from it.
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(json: str | bytes) -> Event:
    """Parse one event. Raises `pydantic.ValidationError`."""
    return EVENT.validate_json(json)
