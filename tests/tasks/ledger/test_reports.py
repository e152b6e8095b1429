"""REPORT: what is told of a batch, and whether it was asked to end."""

from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.redis_call import redis_time_ms, run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.batch_status import BatchStatus

pytestmark = pytest.mark.redis

RUNS = BatchStatus(run_id="r", state="running", input_name="in")
ENDED = RUNS.model_copy(update={"state": "done"})


def test_a_run_hears_until_its_end_that_it_was_asked_to_end_and_a_later_one_does_not(redis: Redis) -> None:
    def is_asked(status: BatchStatus) -> bool:
        return run_call(redis, Reports().report_batch(status))

    assert not run_call(redis, Reports().end_batch("r"))
    assert not is_asked(RUNS)
    assert run_call(redis, Reports().end_batch("r"))
    assert [is_asked(one) for one in (RUNS, RUNS, ENDED)] == [True, True, True]
    assert not run_call(redis, Reports().end_batch("r"))
    assert not is_asked(RUNS)


def test_a_report_says_when_it_was_made_and_is_forgotten_in_time(redis: Any) -> None:
    index = "herd:default:batches"
    for status in (RUNS, ENDED):
        redis.zadd(index, {"forgotten": 1})
        before = run_call(redis, redis_time_ms())
        run_call(redis, Reports().report_batch(status))
        [listed] = redis.zrange(index, 0, -1, withscores=True)
        [told] = run_call(redis, Reports().batches())
        assert told.model_copy(update={"beat_ms": status.beat_ms}) == status
        assert before <= told.beat_ms <= run_call(redis, redis_time_ms())
        assert listed == (b"r", told.beat_ms + 1000 * status.ttl_s)
        assert 0 < redis.ttl("herd:default:batch:r") <= status.ttl_s
    run_call(redis, Reports().report_batch(RUNS.model_copy(update={"run_id": "other"})))
    assert RUNS.ttl_s < redis.ttl(index) <= ENDED.ttl_s, "as long as any of them"
