"""A hundred thousand rows: bounded memory, here and in Redis."""

import pytest

from benchmarks import batch, batches

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]

#: Of a million rows: 300 MB. Names and marks grow with the rows, the rest does not.
MAX_BYTES = 120e6


def test_a_hundred_thousand_rows_stay_within_their_memory() -> None:
    found = batch.with_stand_in()
    assert found["num_done"] == batch.STAND_IN_ROWS
    assert found["command_peak_bytes"] < MAX_BYTES
    assert found["redis_peak_bytes"] < MAX_BYTES


def test_a_gateway_stays_within_its_memory_too() -> None:
    (run,) = batches.measure(batches.Plan(num_rows=(batch.STAND_IN_ROWS,), upload_bytes=1 << 20))["runs"]
    assert run["HTTP"]["peak_mb"] < MAX_BYTES / 1e6
    assert run["HTTP"]["redis_peak_mb"] < MAX_BYTES / 1e6
