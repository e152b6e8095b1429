"""What goes into a batch and what comes out of it, a row at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.result import Result


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A job on its way in, or why there is none.

    index: the row's number, which names its job; no two rows of a run share one, and they rise.
    tag: whatever the caller wants to find again in the item that comes out.
    """

    index: int
    job: GenerationJob | Mapping[str, Any] | None = None
    failure: Failure | None = None
    tag: Any = None


#: What a batch takes: a job in any form, or None where the next one is not known yet.
BatchJob = GenerationJob | Mapping[str, Any] | BatchRow | None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """What came of a row: a result, however the job ended, or why there is none.

    job_id, model: the last job that was run for it, and whose queue it went to.
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
        """Why the row has no whole output; None when it ended by itself or at max_tokens."""
        if self.result is None:
            return self.rejection
        if self.result.finish_reason in ("stop", "length"):
            return None
        return self.result.error or Failure(
            code=self.result.finish_reason, message=f"the job ended early: {self.result.finish_reason}"
        )
