"""A Redis at its maxmemory takes nothing new, but what it has accepted goes on, is cancelled, and ends.

That no script but a few begins with a write that takes memory is watched in all tests of the ledger.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import Cancellation, Yours
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.script import Head, Script
from llama_herd.tasks.ledger.sweep import sweep_tenant
from tests.tasks.herd import Herd, end, ids, let_sweep_be_due, started, token
from tests.tasks.ledger.watched_scripts import NOTES

pytestmark = pytest.mark.redis
KEPT = "herd:default:kept"


@contextmanager
def full(herd: Herd, limit: int = 1 << 20) -> Iterator[None]:
    """Redis is full, and ended jobs may keep so much of it."""
    herd.redis.hset(KEPT, "limit", limit)
    herd.redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        herd.redis.config_set("maxmemory", 0)


def test_a_job_that_waits_is_run_to_its_end_and_no_new_one_is_taken(herd: Herd) -> None:
    herd.submit("a")
    with full(herd):
        with pytest.raises(ResponseError, match="maxmemory"):
            herd.submit("b")
        assert isinstance(herd.claim("a"), Yours)
        assert herd.kinds("one", started("a"), token("a", 2, 0), end("a", 3, 1)) == ["ok"] * 3
        assert not run_call(herd.redis, herd.ledger.settle("a", b"a tale", 60))
    assert [event.type for event in herd.events("a")] == ["started", "token", "end"]
    assert herd.redis.get(herd.ledger.result_key("a")) == b"a tale"
    assert not herd.redis.exists(herd.ledger.job_key("b"))


def test_a_job_whose_worker_died_is_delivered_again(running: Herd) -> None:
    running.redis.delete("herd.tales")
    running.fall_silent("a")
    let_sweep_be_due(running)
    with full(running):
        run_call(running.redis, sweep_tenant(running.ledger))
    assert ids(running) == ["a"]


def test_jobs_are_cancelled_and_purged(running: Herd) -> None:
    running.submit("waits")
    with full(running):
        assert run_call(running.redis, running.ledger.cancel("waits")) is Cancellation.CANCELLED
        assert run_call(running.redis, running.ledger.cancel("a")) is Cancellation.ASKED
        run_call(running.redis, running.ledger.purge("waits"))
    assert running.field("waits", "state") == "purged"
    assert running.field("a", "cancel") == "cancelled"


@pytest.mark.parametrize("limit", [0, 1])
def test_none_is_begun_where_ended_jobs_keep_as_much_as_they_may_or_nothing_bounds_them(
    herd: Herd, limit: int
) -> None:
    """Memory that is bounded by nothing but `maxmemory` has no room for their outputs."""
    for job_id in ("ended", "a"):
        herd.submit(job_id)
    run_call(herd.redis, herd.ledger.cancel("ended"))
    with full(herd, limit), pytest.raises(ResponseError, match="maxmemory"):
        herd.claim("a")
    assert herd.field("a", "state") == "queued"
    assert isinstance(herd.claim("a"), Yours)


@pytest.mark.usefixtures("undeclared")
def test_a_script_that_a_full_redis_would_refuse_is_seen(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "head", Head())
    monkeypatch.setattr(Script, "plain_source", "redis.call('HSET', KEYS[1], 'a', 1) return 1")
    assert run_call(redis, RedisCall(Script("greedy"), ("given",), (), int)) == 1
    assert redis.smembers(NOTES) == {b"greedy begins with HSET"}
    redis.delete(NOTES)
