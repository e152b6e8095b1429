"""The outcome of a job, folded from its events.

There is no other copy of it: what `Client.result` answers, what Celery stores, and what a redelivered message
stores again are all this fold over the job's stream.
"""

from collections.abc import Iterable
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.events import End, Event, Failure, FinishReason, Started, Timings, Token, Usage

T = TypeVar("T")


class Result(BaseModel):
    """What came of a job. `text` and `ids` hold what was generated, however the job ended."""

    model_config = ConfigDict(frozen=True)

    job: str
    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage | None
    error: Failure | None
    seed: int | None
    attempts: int
    worker: str | None
    timings: Timings | None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Fold all events of one job, from the first to `end`. Raises ValueError when there is no `end`."""
        tokens: list[Token] = []
        started: Started | None = None
        for event in events:
            match event:
                case Started():
                    started = event
                case Token():
                    tokens.append(event)
                case End():
                    return cls._of(event, started, tokens)
        raise ValueError("these events hold no end")

    @classmethod
    def _of(cls, end: End, started: Started | None, tokens: list[Token]) -> Self:
        return cls(
            job=end.job,
            text="".join(token.text for token in tokens),
            ids=tuple(token_id for token in tokens for token_id in token.ids),
            logprobs=_joined(token.logprobs for token in tokens),
            top_logprobs=_joined(token.top_logprobs for token in tokens),
            finish_reason=end.finish_reason,
            usage=end.usage,
            error=end.error,
            seed=started.seed if started else None,
            attempts=end.attempts,
            worker=end.worker,
            timings=end.timings,
        )

    def raise_for_error(self) -> Self:
        """Raise `GenerationError` or `DeadlineExceeded` if the job ended so; a cancelled job is no error."""
        if self.error is not None:
            raise GenerationError(self.error.code, self.error.message, self.error.retriable)
        if self.finish_reason == "deadline":
            raise DeadlineExceeded(f"job {self.job} was not finished by its deadline")
        return self


def _joined(parts: Iterable[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """The parts that are there, one after the other; None when there are none."""
    found = [part for part in parts if part is not None]
    return tuple(value for part in found for value in part) if found else None
