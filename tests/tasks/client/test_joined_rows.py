"""Rows that share jobs, and the room that their vectors have in Redis."""

import pytest

from llama_herd.tasks import BatchItem, BatchRow, GenerationJob, Result
from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.client.batch.joined_rows import MAX_JOINED_BYTES, items_of, joined_left
from llama_herd.tasks.client.batch.vector_room import MAX_BYTES, UNKNOWN_VECTOR_BYTES, VectorRoom
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import Failure, Usage

BAD = Failure(code="invalid_line", message="text: must be a text that is not empty")


def row(index: int, text: str = "a") -> BatchRow:
    return BatchRow(index, EmbeddingJob(texts=(text,)), tag=f"tag {index}")


def rows(num: int) -> list[BatchRow]:
    return [row(index) for index in range(1, num + 1)]


def lots(some: list[BatchRow], done: set[int], max_rows: int = 4) -> list[BatchRow]:
    known = DoneRows()
    for index in done:
        known.add(index)
    return [one for one in joined_left(some, known, max_rows) if one is not None]


def test_lots_do_not_depend_on_what_is_done() -> None:
    fresh, again = lots(rows(10), set()), lots(rows(10), {1, 2, 6, 9, 10})
    assert [one.name for one in fresh] == [one.name for one in again] == ["1:4", "5:4", "9:2"]
    assert [one.job for one in fresh] == [one.job for one in again]
    assert [[one and one.index for one in lot.joined] for lot in again] == [
        [None, None, 3, 4],
        [5, None, 7, 8],
        [None, None],
    ]
    assert [one.is_done for one in again] == [False, False, True]


def test_a_row_that_is_not_known_yet_parts_no_lot() -> None:
    first, second, third, fourth, fifth = rows(5)
    arriving = joined_left([None, first, None, second, None, third, fourth, None, fifth], DoneRows(), 2)
    assert [one and one.name for one in arriving] == [None, None, None, "1:2", None, "3:2", "5"]


def test_a_row_that_is_left_over_has_a_job_of_its_own() -> None:
    (_, last) = lots(rows(5), set())
    assert (last.name, last.joined) == ("5", ())
    assert lots(rows(5), {1, 2, 3, 4, 5}, 1) == []


def test_long_texts_share_no_job() -> None:
    long = "x" * (MAX_JOINED_BYTES // 2 + 1)
    assert [one.name for one in lots([row(1, long), row(2), row(3, long)], set())] == ["1:2", "3"]


def test_rows_without_a_text_stand_between_those_that_share_a_job() -> None:
    some = [row(1), BatchRow(2, failure=BAD), row(3)]
    (lot,) = lots(some, set())
    usage = Usage(prompt_tokens=7, completion_tokens=0, total_tokens=7)
    items = items_of(BatchItem(lot, "job", "tales", Result.of("", vectors=("A", "B"), usage=usage)))
    assert [one.row for one in items] == some
    assert [one.result and one.result.vectors for one in items] == [("A",), None, ("B",)]
    assert [one.result and one.result.usage for one in items] == [usage, None, None]
    assert items[1].failure == BAD
    (again,) = lots(some, {1, 2})
    items = items_of(BatchItem(again, "job", "tales", Result.of("", vectors=("A", "B"), usage=usage)))
    assert [(one.index, one.result and one.result.vectors) for one in items] == [(3, ("B",))]


def test_rows_wait_while_the_vectors_of_others_fill_their_room() -> None:
    room = VectorRoom()
    room.take(0, GenerationJob(prompt="x" * MAX_BYTES))
    job = EmbeddingJob(texts=("a",) * 256)
    num = 0
    while not room.is_full:
        room.take(num, job)
        room.take(num, job)  # tried again: it is the same row
        num += 1
    assert num == pytest.approx(MAX_BYTES / (256 * UNKNOWN_VECTOR_BYTES), abs=1)
    room.learn(Result.of("", vectors=("x" * 100, None)))
    assert not room.is_full
    room.learn(Result.of("", vectors=("x" * UNKNOWN_VECTOR_BYTES,)))
    assert room.is_full
    room.free([0, 1, 1])
    assert not room.is_full
