"""Reads a batch's rows one by one, and makes a job of each."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import InvalidJob
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchJob, BatchRow
from llama_herd.tasks.client.batch.row_job import RowJob
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

#: Defaults of a batch's jobs: all other jobs go first, and few events are enough.
BULK: Mapping[str, Any] = {"priority": -10, "flush_ms": 500}


class RowFeed:
    """Reads a row only when there is room for its job."""

    def __init__(self, jobs: Iterable[BatchJob], settings: Settings, run_id: str) -> None:
        self.is_open = True
        self._rows = _rows(jobs)
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
        return None if row is None else self._row_job(row)

    def _row_job(self, row: BatchRow) -> RowJob | BatchItem:
        if row.failure is not None:
            return BatchItem(row, rejection=row.failure)
        try:
            return RowJob(row, self._job(row.job or {}), self._run_id)
        except InvalidJob as error:
            return BatchItem(row, rejection=Failure(code=ErrorCode.INVALID_JOB, message=str(error)))

    def _job(self, job: GenerationJob | Mapping[str, Any]) -> GenerationJob:
        """The job, with defaults for absent fields. Raises InvalidJob."""
        given = job.model_dump(exclude_unset=True) if isinstance(job, GenerationJob) else job
        checked = GenerationJob.parse({**BULK, **given}, self._settings)
        return checked.model_copy(update={"model": checked.model or self._settings.default_model})


def _rows(jobs: Iterable[BatchJob]) -> Iterator[BatchRow | None]:
    """All jobs as rows. A bare job gets its position as its number."""
    index = 0
    for job in jobs:
        if job is None:
            yield None
            continue
        yield job if isinstance(job, BatchRow) else BatchRow(index, job)
        index += 1
