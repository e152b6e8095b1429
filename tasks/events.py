"""What travels on a job's stream and channel: `started` once an attempt, `token`, and one `end`.

Every event carries `seq`, dense from 1 within the job and across attempts: a reader sees a gap, drops what it
has seen, and resumes from any number. Readers ignore fields that they do not know.
"""

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from llama_herd.error_code import is_retriable

#: Stands for the log-probability of what cannot come, minus infinity, which JSON cannot write.
LOWEST_LOGPROB = -9999.0

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]

#: With `stop` the stop string or id that was met, None for an end of sequence; with `length` `max_tokens` or
#: `context`, whichever was used up; else None.
StopReason = str | int | None


class Usage(BaseModel):
    """Tokens that went in and came out."""

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Failure(BaseModel):
    """Why a job ended with an error; `retriable` says whether the same job may succeed later."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="An ErrorCode; a reader passes on one that it does not know.")
    message: str
    retriable: bool = Field(
        default_factory=lambda given: is_retriable(given.get("code", "")),
        description="Where it is absent, as docs/protocol.md says of the code.",
    )


class Timings(BaseModel):
    """Seconds from submission: until prefill began, until the first token, until the end."""

    model_config = ConfigDict(frozen=True)

    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None


def _finite(score: Any) -> Any:
    """A log-probability that JSON can write; null is how others have written one that it cannot."""
    if score is None or (isinstance(score, float) and not isfinite(score)):
        return LOWEST_LOGPROB
    return score


Score = Annotated[float, BeforeValidator(_finite)]
Scores = tuple[Score, ...]
#: For each place pairs of id and log-probability.
TopScores = tuple[tuple[tuple[int, Score], ...], ...]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    v: Literal[1] = 1
    seq: int = Field(ge=1, description="Number of this event in its job, dense from 1.")
    job: str
    epoch: int = Field(ge=0, description="Which claim wrote it.")

    def to_json(self) -> str:
        """The event as one line of JSON."""
        return self.model_dump_json()


class Started(_Event):
    """An attempt begins. A later attempt goes on where the recorded tokens end."""

    type: Literal["started"] = "started"
    attempt: int = Field(ge=1, description="Number of this attempt.")
    worker: str
    model: str
    seed: int = Field(description="The seed in effect, whether given or derived from the id.")
    n: int = Field(default=1, ge=1, le=1024, description="How many outputs the job has.")
    prompt_tokens: int | None = None


class Token(_Event):
    """One or more tokens of one output, and the text they release.

    The text ends on a character's border: what is not whole yet waits for a later event, so `text` may be
    empty, and `ids` too when only held back text comes out.
    """

    type: Literal["token"] = "token"
    i: int = Field(ge=0, description="Index of the first of `ids` in its output.")
    ids: tuple[int, ...]
    text: str
    choice: int | None = Field(
        default=None, description="Which of several outputs; absent when there is one."
    )
    finish_reason: FinishReason | None = Field(
        default=None, description="With the last tokens of one of several outputs: why it ended."
    )
    stop_reason: StopReason = Field(
        default=None, description="Beside a `finish_reason`: the same as in `end`, of this output."
    )
    # From here on all are scores, which `read.lua` cuts off.
    logprobs: Scores | None = Field(
        default=None,
        description=f"One for each id, when asked for; {LOWEST_LOGPROB} stands for minus infinity.",
    )
    top_logprobs: TopScores | None = Field(
        default=None,
        description="For each id the likeliest in its place, as pairs of id and log-probability.",
    )
    prompt_logprobs: Scores | None = Field(
        default=None,
        description="With the first tokens, when asked for: one for each prompt token but the first.",
    )
    top_prompt_logprobs: TopScores | None = Field(
        default=None, description="For each of these the likeliest in its place."
    )

    def to_json(self) -> str:
        """The event as one line of JSON, without the fields that are not used."""
        return self.model_dump_json(exclude_none=True)


class End(_Event):
    """The one final event of a job."""

    type: Literal["end"] = "end"
    final: Literal[True] = True
    finish_reason: FinishReason
    stop_reason: StopReason = Field(
        default=None,
        description="With `stop` the stop string or id that was met, null for an end of sequence; with "
        "`length` `max_tokens` or `context`, whichever was used up; else, and of several outputs, null.",
    )
    n: int = Field(ge=0, description="Tokens recorded.")
    usage: Usage | None = None
    text_sha256: str | None = Field(
        default=None,
        description="Of all events' texts in their order, joined, UTF-8; null if no worker knew it.",
    )
    error: Failure | None = None
    attempts: int = Field(ge=0, description="How often the job was started.")
    worker: str | None = None
    timings: Timings | None = None


Event = Annotated[Started | Token | End, Field(discriminator="type")]

#: Checks and reads any event; also the source of docs/schemas/event.json.
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(json: str | bytes) -> Event:
    """Read one event. Raises `pydantic.ValidationError` when it is none."""
    return EVENT.validate_json(json)
