"""A row's job on its way through the queue."""

from collections.abc import Iterable
from dataclasses import dataclass

from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import together
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob

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
        return job_id_of(self.run_id, self.row.index, self.number)

    def is_worth_another(self, failure: Failure | None) -> bool:
        """Count this failure, and return whether the row should be tried again under its next id."""
        if failure is None or not failure.retriable:
            return False
        self.num_failed += 1
        return self.num_failed < MAX_TRIES


def job_id_of(run_id: str, row: int, number: int) -> str:
    """The id of a row's job; number: which of its jobs, from 1 on."""
    first = f"batch-{run_id}-{row}"
    return first if number == 1 else f"{first}.{number}"


async def forget_jobs(ledger: Ledger, run_id: str, rows: Iterable[int]) -> None:
    """Delete from Redis what jobs of these rows there are."""
    job_ids = [job_id_of(run_id, row, number) for row in rows for number in range(1, MAX_TRIES + 1)]
    states = await together([ledger.state(job_id) for job_id in job_ids])
    known = [job_id for job_id, state in zip(job_ids, states, strict=True) if state is not None]
    if known:
        await together([ledger.purge(job_id) for job_id in known])
