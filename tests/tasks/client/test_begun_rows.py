"""Rows that another process has begun are found, and no others."""

from time import monotonic

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.batch import begun_rows
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.client.batch.begun_rows import BegunRows
from llama_herd.tasks.client.batch.vector_room import MAX_BYTES, UNKNOWN_VECTOR_BYTES
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.patience import wait_until

pytestmark = pytest.mark.redis

RUN = "begun"
BEGUN, ALL = 6, 20


def verdict(job_id: str, job: GenerationJob) -> Failure | None:
    """The first job of every other row may be tried again, which nobody does any more."""
    is_even = int(job_id.rpartition("-")[2]) % 2 == 0
    return Failure(code="any", message="any", retriable=True) if is_even else None


@pytest.mark.parametrize("size", [1, 4, 100])
def test_each_row_that_has_begun_is_found_whatever_is_read_at_once(
    redis: Redis, redis_url: str, size: int
) -> None:
    core = ClientCore.from_settings(Settings.read(redis_url=redis_url, model_name="tales"))
    rows = [BatchRow(number, {"prompt": "x"}) for number in range(1, ALL + 1)]
    with StandIn(redis_url, verdict=verdict) as worker:
        run_dialogue(redis, BatchWindow(core, rows, run_id=RUN, size=BEGUN).round(0.0))
        wait_until(lambda: len(worker.answered) == BEGUN, "what has begun has ended")
        begun, items = BegunRows(core, rows, run_id=RUN, size=size), list[BatchItem]()
        while not begun.is_over:
            items += run_dialogue(redis, begun.round(monotonic()))
        assert len(worker.answered) == BEGUN
    assert [item.index for item in items if item.failure is None] == [1, 3, 5]


def test_rows_are_read_as_far_as_some_may_have_begun_and_no_further(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun_rows, "MAX_PARKED", ALL)
    core = ClientCore.from_settings(Settings.read(redis_url=redis_url, model_name="tales"))
    rows = [BatchRow(number, {"prompt": "x"}) for number in range(1, 10 * ALL)]
    last = BEGUN + ALL  # behind as many as may be parked
    submitted = [*rows[:BEGUN], rows[last]]
    with StandIn(redis_url) as worker:
        run_dialogue(redis, BatchWindow(core, submitted, run_id=RUN).round(0.0))
        wait_until(lambda: len(worker.answered) == BEGUN + 1, "what has begun has ended")
    left = iter(rows)
    begun, items = BegunRows(core, left, run_id=RUN, size=1), list[BatchItem]()
    while not begun.is_over:
        items += run_dialogue(redis, begun.round(monotonic()))
    assert [item.row for item in items] == submitted
    assert next(left) is rows[last + 1 + ALL + 1]


def test_more_texts_than_have_room_do_not_hold_up_the_end(redis: Redis, redis_url: str) -> None:
    core = ClientCore.from_settings(Settings.read(redis_url=redis_url, model_name="tales"))
    num_rows = 2 * MAX_BYTES // (MAX_TEXTS * UNKNOWN_VECTOR_BYTES)
    rows = [BatchRow(number, {"kind": "embed", "texts": ["x"] * MAX_TEXTS}) for number in range(num_rows)]
    begun = BegunRows(core, rows, run_id=RUN, size=num_rows)
    for _ in range(num_rows):
        assert run_dialogue(redis, begun.round(monotonic())) == []
    assert begun.is_over
