"""A job of which Redis has lost a part, by eviction or by hand: it ends as unreadable, and says why."""

import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger.answers import Emission, Emitted, Ended, Unknown
from llama_herd.tasks.protocol.events import End
from tests.tasks.herd import JOB, Herd, end, sweep, token

pytestmark = pytest.mark.redis


def lose_record(herd: Herd) -> None:
    assert herd.redis.delete(herd.ledger.job_key("a")) == 1


def lose_events(herd: Herd) -> None:
    assert herd.redis.delete(herd.ledger.events_key("a")) == 1


def ended_unreadable(herd: Herd, seq: int) -> None:
    last = herd.events("a")[-1]
    assert isinstance(last, End)
    assert last.seq == seq
    assert last.error is not None
    assert last.error.code == ErrorCode.UNREADABLE
    assert "noeviction" in last.error.message
    assert herd.field("a", "state") == "failed"
    for key in (herd.ledger.job_key("a"), herd.ledger.events_key("a")):
        assert herd.redis.ttl(key) > 0
    for index in ("pending", "delayed", "leases"):
        assert herd.redis.zscore(herd.ledger.key(index), "a") is None


def test_no_stream_begins_in_its_middle(running: Herd) -> None:
    lose_events(running)
    assert running.emit("one", token("a", 3, 2), token("a", 4, 3)) == [Emitted(Emission.DAMAGED, 2, 2)] * 2
    assert running.events("a") == []
    assert running.kinds("one", end("a", 3, 2, finish_reason="error")) == ["ok"]
    assert [event.seq for event in running.events("a")] == [3]
    assert running.field("a", "state") == "failed"


def test_the_owner_of_a_job_without_a_record_may_only_end_it(running: Herd) -> None:
    lose_record(running)
    assert running.emit("one", token("a", 3, 2)) == [Emitted(Emission.DAMAGED, 2, 2)]
    assert running.redis.exists(running.ledger.job_key("a")) == 0
    assert running.kinds("one", end("a", 3, 2, finish_reason="error")) == ["ok"]
    assert [event.seq for event in running.events("a")] == [1, 2, 3]
    assert (running.field("a", "state"), running.field("a", "n")) == ("failed", "2")
    assert running.redis.zscore(running.ledger.key("leases"), "a") is None
    assert running.kinds("one", end("a", 3, 2, finish_reason="error")) == ["fenced"]


def test_a_worker_that_comes_back_to_a_forgotten_job_writes_nothing(running: Herd) -> None:
    running.emit("one", end("a", 3, 2))
    lose_record(running)
    lose_events(running)
    assert running.kinds("one", token("a", 3, 2)) == ["fenced"]
    assert running.kinds("one", end("a", 3, 2)) == ["fenced"]
    assert running.redis.exists(running.ledger.job_key("a"), running.ledger.events_key("a")) == 0


def test_a_waiting_job_without_a_record_ends_when_its_message_comes(herd: Herd) -> None:
    herd.submit("a")
    lose_record(herd)
    assert isinstance(herd.claim("a"), Ended)
    ended_unreadable(herd, seq=1)


def test_a_delayed_job_without_a_record_is_counted_for_no_queue(herd: Herd) -> None:
    herd.submit("a", JOB.model_copy(update={"not_before": 2**52}))
    before = herd.redis.hgetall(herd.ledger.key("waiting"))
    lose_record(herd)
    assert isinstance(herd.claim("a"), Ended)
    assert herd.redis.hgetall(herd.ledger.key("waiting")) == before
    ended_unreadable(herd, seq=1)


def test_a_message_of_a_job_that_nobody_counts_is_still_unknown(herd: Herd) -> None:
    assert isinstance(herd.claim("a"), Unknown)
    assert herd.redis.exists(herd.ledger.job_key("a")) == 0


def test_a_sweep_ends_a_waiting_job_without_a_record(herd: Herd) -> None:
    herd.submit("a")
    lose_record(herd)
    herd.redis.zadd(herd.ledger.key("pending"), {"a": 1})
    sweep(herd)
    ended_unreadable(herd, seq=1)


def test_a_sweep_ends_a_running_job_without_a_record_where_its_events_stop(running: Herd) -> None:
    lose_record(running)
    running.redis.zadd(running.ledger.key("leases"), {"a": 1})
    sweep(running)
    ended_unreadable(running, seq=3)
    assert running.kinds("one", token("a", 3, 2)) == ["fenced"]
