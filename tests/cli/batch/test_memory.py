"""A hundred thousand rows: bounded memory, here and in Redis."""

import pytest

from benchmarks import batch, batches
from benchmarks.report import number

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_ROWS = 100_000
#: Of a million rows: 300 MB. Names and marks grow with the rows, the rest does not.
MAX_BYTES = 120e6


def test_a_hundred_thousand_rows_stay_within_their_memory() -> None:
    found = batch.with_stand_in(NUM_ROWS)
    assert found.summary["num_done"] == NUM_ROWS
    assert found.memory.most.command_bytes < MAX_BYTES
    assert found.memory.most.redis_bytes < MAX_BYTES


def test_a_gateway_stays_within_its_memory_too() -> None:
    with batches.bench(NUM_ROWS) as bench:
        row = bench.over_http()
    assert number(row["memory, MB"]) < MAX_BYTES / 1e6
    assert number(row["Redis, MB"]) < MAX_BYTES / 1e6
