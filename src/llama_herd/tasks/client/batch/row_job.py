"""A row's job on its way through the queue."""

from dataclasses import dataclass

from llama_herd.tasks.client.batch.row import BatchRow
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob

#: Most jobs of one row that may end with a retriable error.
MAX_TRIES = 3


@dataclass(slots=True)
class RowJob:
    """A row's job under one of the row's ids: the first id that is free, and the next one for each retry."""

    row: BatchRow
    job: GenerationJob
    run_id: str
    number: int = 1
    num_failed: int = 0

    @property
    def job_id(self) -> str:
        """A pure function of run, row and number, so submitting the row again finds the same job."""
        first = f"batch-{self.run_id}-{self.row.index}"
        return first if self.number == 1 else f"{first}.{self.number}"

    def is_worth_another(self, failure: Failure | None) -> bool:
        """Count this failure, and return whether the row should be tried again under its next id."""
        if failure is None or not failure.retriable:
            return False
        self.num_failed += 1
        return self.num_failed < MAX_TRIES
