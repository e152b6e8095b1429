"""Rows with a text each that share jobs: how they are joined, and what becomes of each.

A job of one text costs Redis and worker as much as one of many.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob

#: Most bytes of the texts of joined rows: a job of long ones needs no company.
MAX_JOINED_BYTES = 65_536


def join(rows: Sequence[BatchRow | None], jobs: Sequence[EmbeddingJob], index: int) -> BatchRow:
    """One row of several that ask for the same of their texts. jobs: of those with a text; index: its own."""
    texts = tuple(text for job in jobs for text in job.texts or ())
    return BatchRow(index, jobs[0].model_copy(update={"texts": texts}), joined=rows)


def items_of(item: BatchItem) -> list[BatchItem]:
    """The item of each row that shared a job, or of a row alone. The first result has the tokens of all."""
    if not item.row.joined:
        return [item]
    result, items = item.result, list[BatchItem]()
    vectors = iter((result and result.vectors) or ())
    for row in item.row.joined:
        if row is not None and row.failure is not None:
            items.append(BatchItem(row, rejection=row.failure))
            continue
        vector = next(vectors, None)
        if row is not None:
            own = result and result.model_copy(update={"vectors": (vector,)})
            items.append(replace(item, row=row, result=own))
            result = result and result.model_copy(update={"usage": None})
    return items


def rows_of(row: BatchRow) -> list[BatchRow]:
    """The rows that shared a job and have no answer, each by itself."""
    return [one for one in row.joined if one is not None]


def joined_left(rows: Iterable[BatchRow | None], done: DoneRows, max_rows: int) -> Iterator[BatchRow | None]:
    """All rows but those that are done, joined to lots of at most `max_rows` in a row; None stays.

    Lots follow from all rows alone, whatever is done, so that each run finds the jobs of the one before. Of a
    lot that is done only the job comes, which a killed run may not have deleted.
    """
    lot, num_bytes = list[BatchRow](), 0
    for row in rows:
        if row is None:
            yield None
            continue
        size = row.job.num_prompt_bytes if isinstance(row.job, EmbeddingJob) else 0
        if lot and (len(lot) == max_rows or num_bytes + size > MAX_JOINED_BYTES):
            yield from _left(lot, done)
            lot, num_bytes = [], 0
        lot.append(row)
        num_bytes += size
    yield from _left(lot, done)


def _left(lot: Sequence[BatchRow], done: DoneRows) -> Iterator[BatchRow]:
    """What is to be done of a lot: one row for all, or each that has no text."""
    left = [row for row in lot if row.index not in done]
    texts = [(row.index, row.job) for row in lot if isinstance(row.job, EmbeddingJob)]
    if len(texts) < 2:
        yield from left
        return
    rows = [None if row.index in done else row for row in lot if row.failure is None or row.index not in done]
    yield join(rows, [job for _, job in texts], texts[0][0])
