"""The rows that go into a batch, and the items that come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_herd.tasks.client.arguments import MAX_COUNT, checked_count
from llama_herd.tasks.protocol.events import GOOD_ENDS, Failure
from llama_herd.tasks.protocol.given import checked_items, checked_kind
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.text_job import TextJob

_ROWS = "rows, or None for one that has its answer"


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A job, or why the row has none.

    index: the row's number, which is part of its job's id; unique and rising within a run.
    tag: any value of the caller's; the row's item has it as `row.tag`.
    joined: the rows that share the job, as `join` makes them; None is one that has its answer.

    Raises BadInput, but for a wrong job: the item of its row says what is wrong with it.
    """

    index: int
    job: Job | Mapping[str, Any] | None = None
    failure: Failure | None = None
    tag: Any = None
    joined: "Sequence[BatchRow | None]" = ()

    def __post_init__(self) -> None:
        if type(self.index) is not int or not 0 <= self.index <= MAX_COUNT:
            object.__setattr__(self, "index", checked_count("index", self.index))
        if self.failure is not None:
            checked_kind("failure", self.failure, Failure, "a Failure or None")
        if self.joined != ():
            for row in checked_items("joined", self.joined, _ROWS):
                checked_kind("joined", row, BatchRow | None, _ROWS)

    @property
    def is_done(self) -> bool:
        """Whether all rows of a job have their answers, so that nothing is left but to forget it."""
        return bool(self.joined) and not any(self.joined)

    @property
    def name(self) -> str:
        """What a run calls it: of joined rows the first with a text, and how many texts there are."""
        return (
            f"{self.index}:{self.job.num_texts}"
            if isinstance(self.job, TextJob) and self.joined
            else str(self.index)
        )


#: Input of a batch: a job in any form, or None if the next one is not known yet.
BatchJob = Job | Mapping[str, Any] | BatchRow | None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The outcome of a row: the job's result, however it ended, or a rejection if there is no result.

    job_id, model: the last job that was run for the row, and its model.
    """

    row: BatchRow
    job_id: str = ""
    model: str | None = None
    result: Result | None = None
    rejection: Failure | None = None

    @property
    def index(self) -> int:
        return self.row.index

    @property
    def failure(self) -> Failure | None:
        """Why the row has no complete output; None if the job ended with `stop` or `length`."""
        if self.result is None:
            return self.rejection
        if self.result.finish_reason in GOOD_ENDS:
            return None
        return self.result.error or Failure(
            code=self.result.finish_reason, message=f"the job ended early: {self.result.finish_reason}"
        )
