"""Reads a batch's rows one by one, and makes a job of each, under the ids of its row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchJob, BatchRow
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import together
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.given import checked_items
from llama_herd.tasks.protocol.job import ROW_PREFIX
from llama_herd.tasks.protocol.kinds import Job, parse_job
from llama_herd.tasks.protocol.terms import fields_of
from llama_herd.tasks.settings import Settings

J = TypeVar("J", bound=Job)

#: Defaults of a batch's jobs: all other jobs go first, and few events are enough.
BULK: Mapping[str, Any] = {"priority": -10, "flush_ms": 500}

#: Most jobs of one row that may end with a retriable error, unless the row says how often it is tried again.
MAX_TRIES = 3


@dataclass(slots=True)
class RowJob:
    """A row's job under one of the row's ids: the first id that is free, and the next one for each retry."""

    row: BatchRow
    job: Job
    run_id: str
    number: int = 1
    num_failed: int = 0

    @property
    def job_id(self) -> str:
        """A pure function of run, row and number, so submitting the row again finds the same job."""
        return job_id_of(self.run_id, self.row.name, self.number)

    def is_worth_another(self, failure: Failure | None) -> bool:
        """Count this failure, and return whether the row should be tried again under its next id.

        A job with `retries` of its own has been tried again under its first.
        """
        if failure is None or not failure.retriable or self.job.retries is not None:
            return False
        self.num_failed += 1
        return self.num_failed < MAX_TRIES


def job_id_of(run_id: str, row: str, number: int) -> str:
    """The id of a row's job, by the row's name; number: which of its jobs, from 1 on."""
    first = f"{ROW_PREFIX}{run_id}-{row}"
    return first if number == 1 else f"{first}.{number}"


def checked_row(job: J) -> J:
    """`job` if it can be a row. Raises InvalidJob for a webhook, which nobody would hear of."""
    if job.webhook is not None:
        fix = "Fix: leave it out; a batch over HTTP has a webhook of its own"
        raise InvalidJob([FieldError("webhook", f"no webhook tells of the end of a batch's row. {fix}")])
    return job


async def forget_jobs(ledger: Ledger, run_id: str, rows: Iterable[int]) -> None:
    """Delete from Redis what jobs of these rows there are."""
    job_ids = [job_id_of(run_id, str(row), number) for row in rows for number in range(1, MAX_TRIES + 1)]
    states = await together([ledger.state(job_id) for job_id in job_ids])
    known = [job_id for job_id, state in zip(job_ids, states, strict=True) if state is not None]
    if known:
        await together([ledger.purge(job_id) for job_id in known])


class RowFeed:
    """Reads a row only when there is room for its job."""

    def __init__(self, jobs: Iterable[BatchJob], settings: Settings, run_id: str) -> None:
        """Raises BadInput for what are no jobs."""
        self.is_open = True
        self._rows = _rows(checked_items("jobs", jobs, "an iterable of jobs"))
        self._settings = settings
        self._run_id = run_id

    def stop(self) -> None:
        """Read no more rows."""
        self.is_open = False

    def take(self) -> RowJob | BatchItem | None:
        """The next row's job, or its item if it has no valid job. None: there is no next row, or not yet."""
        if not self.is_open:
            return None
        try:
            row = next(self._rows)
        except StopIteration:
            self.stop()
            return None
        return None if row is None else self.row_job(row)

    def row_job(self, row: BatchRow) -> RowJob | BatchItem:
        """The row's job, with defaults for absent fields."""
        if row.failure is not None:
            return BatchItem(row, rejection=row.failure)
        try:
            job = checked_row(parse_job({**BULK, **fields_of(row.job or {})}, self._settings))
        except InvalidJob as error:
            return BatchItem(row, rejection=Failure(code=ErrorCode.INVALID_JOB, message=str(error)))
        job = job.model_copy(update={"model": job.model or self._settings.default_model})
        return RowJob(row, job, self._run_id)


def _rows(jobs: Iterable[BatchJob]) -> Iterator[BatchRow | None]:
    """All jobs as rows. A bare job gets its position as its number."""
    index = 0
    for job in jobs:
        if job is None:
            yield None
            continue
        yield job if isinstance(job, BatchRow) else BatchRow(index, job)
        index += 1
