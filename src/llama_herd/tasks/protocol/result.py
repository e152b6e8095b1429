"""The outcome of a job, folded from its events.

There is no other copy. `Client.result`, Celery's result and a redelivered message all use this fold over the
job's stream.
"""

import sys
from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from llama_herd.errors import DeadlineExceeded, GenerationError, RecordUnreadable
from llama_herd.tasks.protocol.events import (
    End,
    Event,
    Failure,
    FinishReason,
    Pieces,
    Started,
    StopReason,
    Timings,
    Token,
    ToolCall,
    Usage,
    Vectors,
)
from llama_herd.tasks.protocol.given import checked_items, refusal
from llama_herd.tasks.protocol.sampling import MAX_CHOICES
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo

_EVENTS = "the events of one job"

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Output(BaseModel):
    """All that one output of a job came to."""

    model_config = ConfigDict(frozen=True)

    text: str = Field(description="All of its text.")
    ids: tuple[int, ...] = Field(description="Ids of its tokens.")
    finish_reason: FinishReason = Field(description="Why it ended.")
    stop_reason: StopReason = Field(
        default=None, description="The stop string or id that matched, or the limit that was reached."
    )
    reasoning: str | None = Field(
        default=None, description="What the model thought before it answered; null: nothing."
    )
    content: str | None = Field(
        default=None,
        description="What it said: `text` without its reasoning and its calls. Null: the text was not read "
        "for these.",
    )
    tool_calls: tuple[ToolCall, ...] | None = Field(
        default=None, description="The calls of tools that it asked for; null: none."
    )
    logprobs: tuple[float, ...] | None = Field(
        default=None, description="Log-probability of each id, if requested."
    )
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = Field(
        default=None,
        description="For each id the most likely tokens at its position, as pairs of id and log-probability.",
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """All that there is; most fields are of jobs that asked for more than text."""
        return (pair for pair in super().__repr_args__() if pair[1] is not None)

    @property
    def answer(self) -> str:
        """The text of the output without its reasoning and its calls of tools."""
        return self.text if self.content is None else self.content


class ResultChoice(Output):
    """One of several outputs of a job."""

    index: int = Field(description="Number of the output, from 0.")

    @classmethod
    def from_events(cls, index: int, tokens: Sequence[Token], end: End) -> Self:
        """Fold the events of one output. If it was not complete, it ended as the job did."""
        last = next((token for token in tokens if token.finish_reason), end)
        return cls(
            index=index,
            text="".join(token.text for token in tokens),
            ids=tuple(token_id for token in tokens for token_id in token.ids),
            finish_reason=last.finish_reason or end.finish_reason,
            stop_reason=last.stop_reason,
            reasoning=_joined_texts(token.reasoning for token in tokens),
            content=_joined_texts(token.content for token in tokens),
            tool_calls=_joined(token.tool_calls for token in tokens),
            logprobs=_joined(token.logprobs for token in tokens),
            top_logprobs=_joined(token.top_logprobs for token in tokens),
        )


class Result(Output):
    """The outcome of a job. `text` and `ids` hold all that was generated, however the job ended.

    If the job has several outputs, these are the first one's, and `choices` has all of them; `finish_reason`
    and `stop_reason` are the job's.
    """

    job: str = Field(description="Id of the job.")
    usage: Usage | None = Field(description="Tokens of the whole job; null if no worker counted them.")
    cached_tokens: int | None = Field(
        default=None,
        description="How many tokens of the prompt the first attempt found in the prefix cache; null: not "
        "counted.",
    )
    error: Failure | None = Field(description="What went wrong, if `finish_reason` is `error`.")
    seed: int | None = Field(description="The seed in effect; null if the job was never started.")
    attempts: int = Field(description="Number of starts of the job.")
    worker: str | None = Field(
        description="The worker that ended it, or else the last one that had it; null if none had."
    )
    timings: Timings | None = Field(description="Times of the whole job; null if no worker took them.")
    weights_digests: tuple[str, ...] | None = Field(
        default=None,
        description="Digests of the weights of the workers that started it, each once; with several, each "
        "may have made a part. Null: none told.",
    )
    prompt_logprobs: tuple[float, ...] | None = Field(
        default=None, description="Log-probability of each prompt token except the first, if requested."
    )
    top_prompt_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = Field(
        default=None, description="For each of these the most likely tokens at its position."
    )
    prompt_ids: tuple[int, ...] | None = Field(
        default=None, description="With `echo`: the ids of the prompt."
    )
    prompt_text: str | None = Field(
        default=None, description="With `echo`: the prompt as a text, or what its ids stand for."
    )
    context_tokens: int | None = Field(
        default=None, description="With `echo`: most tokens that prompt and output may have."
    )
    pieces: Pieces | None = Field(
        default=None,
        description="With scores or `echo`: what each id stands for, each byte as the character of its "
        "number.",
    )
    tokenizer_info: TokenizerInfo | None = Field(
        default=None, description="With `tokenizer_info`: what the model's files say of its tokenizer."
    )
    choices: tuple[ResultChoice, ...] | None = Field(
        default=None, description="All outputs, if there are several."
    )
    vectors: tuple[str | None, ...] | None = Field(
        default=None,
        description="Of a job with texts: the vector of each, its numbers as float32, little-endian, in "
        "Base64. Null is one that was not computed.",
    )

    @property
    def floats(self) -> "list[array[float]]":
        """The vectors as arrays of float32, which numpy.asarray takes without a copy.

        Raises RecordUnreadable if some were not computed.
        """
        if self.vectors is None or None in self.vectors:
            raise RecordUnreadable(f"job {self.job} has not all vectors: it ended with {self.finish_reason}")
        return [floats_of(one) for one in self.vectors if one is not None]

    def parsed(self, kind: type[M]) -> M:
        """The output as an object of the class that the job gave as `response_format`.

        Raises pydantic's ValidationError if it is none, as where `finish_reason` is `length`, and BadInput
        for what is no class.
        """
        if not isinstance(kind, type) or not issubclass(kind, BaseModel):
            raise refusal("kind", kind, "a class of pydantic's BaseModel")
        return kind.model_validate_json(self.answer)

    @classmethod
    def of(cls, text: str, **fields: Any) -> Self:
        """The result of a job that ended by itself with this text, for tests of a service without a worker.

        Any other field may be given, such as `finish_reason` or `usage`. Raises pydantic's ValidationError.
        """
        none = dict.fromkeys(("usage", "error", "seed", "worker", "timings"))
        return cls.model_validate(
            {"job": "test", "text": text, "ids": (), "finish_reason": "stop", "attempts": 1, **none, **fields}
        )

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Fold all events of one job, from the first to `end`; places in the queue among them do not count.

        Raises RecordUnreadable if it has no `end`, and BadInput for what are no events.
        """
        tokens: list[Token] = []
        starts: list[Started] = []
        vectors = dict[int, str]()
        for event in checked_items("events", events, _EVENTS):
            match event:
                case Started():
                    starts.append(event)
                case Token():
                    tokens.append(event)
                case Vectors():
                    vectors.update(zip(event.texts, event.vectors, strict=True))
                case End():
                    return cls._from_parts(event, starts, tokens, vectors)
                case _ if not isinstance(event, BaseModel):
                    raise refusal("events", event, f"{_EVENTS} alone")
        raise RecordUnreadable(
            "the events of this job have no end: Redis has lost it, or somebody has deleted it"
        )

    @classmethod
    def _from_parts(
        cls, end: End, starts: list[Started], tokens: list[Token], vectors: Mapping[int, str]
    ) -> Self:
        started = starts[-1] if starts else None
        echoed = next((one for one in starts if one.prompt_ids is not None), None)
        scored = next((one for one in tokens if one.prompt_logprobs is not None), None)
        choices = [
            ResultChoice.from_events(index, [token for token in tokens if (token.choice or 0) == index], end)
            for index in range(min(started.n, MAX_CHOICES) if started else 1)
        ]
        pieces = Pieces()
        for some in (*(one.pieces for one in starts), *(one.pieces for one in tokens)):
            pieces.update(some or {})
        first = {name: getattr(choices[0], name) for name in Output.model_fields}
        first |= {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        return cls(
            job=end.job,
            **first,
            prompt_logprobs=scored and scored.prompt_logprobs,
            top_prompt_logprobs=scored and scored.top_prompt_logprobs,
            prompt_ids=echoed and echoed.prompt_ids,
            prompt_text=echoed and echoed.prompt_text,
            context_tokens=echoed and echoed.context_tokens,
            tokenizer_info=echoed and echoed.tokenizer_info,
            pieces=pieces or None,
            choices=tuple(choices) if len(choices) > 1 else None,
            vectors=_in_order(started, vectors),
            usage=end.usage,
            cached_tokens=starts[0].cached_tokens if starts else None,
            error=end.error,
            seed=started.seed if started else None,
            attempts=end.attempts,
            worker=end.worker,
            timings=end.timings,
            weights_digests=tuple(dict.fromkeys(one.weights_digest for one in starts if one.weights_digest))
            or None,
        )

    def raise_for_error(self) -> Self:
        """Raise `GenerationError` or `DeadlineExceeded` if the job failed. A cancelled job is no error."""
        if self.error is not None:
            raise GenerationError(self.error.code, self.error.message, self.error.retriable)
        if self.finish_reason == "deadline":
            raise DeadlineExceeded(f"job {self.job} was not finished by its deadline")
        return self


def floats_of(vector: str) -> "array[float]":
    """The numbers of a vector in Base64."""
    floats = array("f", b64decode(vector))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats


def _in_order(started: Started | None, vectors: Mapping[int, str]) -> tuple[str | None, ...] | None:
    """The vectors of all texts; None if the job has no texts."""
    if started is None or started.texts is None:
        return None
    return tuple(vectors.get(number) for number in range(min(started.texts, MAX_TEXTS)))


def _joined_texts(parts: Iterable[str | None]) -> str | None:
    """All texts that are not None, joined; None if there is none."""
    found = [part for part in parts if part is not None]
    return "".join(found) if found else None


def _joined(parts: Iterable[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """All parts that are not None, joined; None if there is none."""
    found = [part for part in parts if part is not None]
    return tuple(value for part in found for value in part) if found else None
