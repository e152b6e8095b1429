"""A row's job on its way through the queue."""

from dataclasses import dataclass

from llama_herd.tasks.client.batch.row import BatchRow
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob

#: How many jobs of a row may end with an error that is worth another try.
MAX_TRIES = 3


@dataclass(slots=True)
class RowJob:
    """A job under one of the ids of its row; the first one that is free, and another after each failure."""

    row: BatchRow
    job: GenerationJob
    run_id: str
    number: int = 1
    num_failed: int = 0

    @property
    def job_id(self) -> str:
        """A pure function of run, row and number: to submit it again is to find it again."""
        first = f"batch-{self.run_id}-{self.row.index}"
        return first if self.number == 1 else f"{first}.{self.number}"

    def is_worth_another(self, failure: Failure | None) -> bool:
        """Whether a job that has ended like this is to be followed by one under the next id; counts it."""
        if failure is None or not failure.retriable:
            return False
        self.num_failed += 1
        return self.num_failed < MAX_TRIES
