"""The laws of parts in a folder."""

from pathlib import Path

import pytest
from redis import Redis

from llama_herd.tasks.feeder.batch_lease import Fenced
from llama_herd.tasks.storage.folder import Folder
from tests.tasks.feeder.parts_laws import Batch, check_each_row_has_one_line, items, rows_of

pytestmark = pytest.mark.redis


@pytest.fixture
def batch(redis: Redis, tmp_path: Path) -> Batch:
    return Batch(redis, Folder(tmp_path))


def test_what_is_written_counts_for_the_next_feeder(batch: Batch) -> None:
    with batch.taken() as first:
        first.write(items(1, 2))
        first.write(items(5))
    with batch.taken() as second:
        assert [row for row in range(9) if row in second.done] == [1, 2, 5]
        second.write(items(3))
        assert rows_of(second) == [1, 2, 5, 3]
        assert second.num_lines("errors") == 4


def test_what_comes_after_the_seal_does_not_count(batch: Batch) -> None:
    with batch.taken() as frozen:
        frozen.write(items(1))
        with batch.taken() as second:
            frozen.write(items(2))
            assert 2 not in second.done
            second.write(items(2))
            frozen.write(items(3))
            assert rows_of(second) == [1, 2]
        with batch.taken() as third:
            assert rows_of(third) == [1, 2]
            assert 3 not in third.done


def test_who_was_fenced_cannot_seal(batch: Batch) -> None:
    with batch.taken() as first, batch.taken():
        first.write(items(1))
        with pytest.raises(Fenced):
            first._lease.renew(num_done=1)


@pytest.mark.parametrize("seed", range(20))
def test_each_row_has_one_line_whoever_writes_on(batch: Batch, seed: int) -> None:
    check_each_row_has_one_line(batch, seed)
