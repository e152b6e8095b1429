"""The outcome of a job, folded from its events.

There is no other copy of it: what `Client.result` answers, what Celery stores, and what a redelivered message
stores again are all this fold over the job's stream.
"""

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.events import End, Event, Failure, FinishReason, Started, Timings, Token, Usage


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

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Fold all events of one job, from the first to `end`. Raises ValueError when there is no `end`."""
        ids: list[int] = []
        text: list[str] = []
        started: Started | None = None
        for event in events:
            match event:
                case Started():
                    started = event
                case Token():
                    ids.extend(event.ids)
                    text.append(event.text)
                case End():
                    return cls._of(event, started, "".join(text), tuple(ids))
        raise ValueError("these events hold no end")

    @classmethod
    def _of(cls, end: End, started: Started | None, text: str, ids: tuple[int, ...]) -> Self:
        return cls(
            job=end.job,
            text=text,
            ids=ids,
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
