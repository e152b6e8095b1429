"""Celery is told of each job that ends while no worker has it, though its message is far behind, or gone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_herd.tasks.ledger.answers import OwedJob
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script import all_scripts
from tests.tasks.herd import QUEUE, Herd, end, started, sweep

pytestmark = pytest.mark.redis

UNTOLD = "herd:default:untold"
AGAIN_MS = 60_000


def due(herd: Herd) -> list[OwedJob]:
    """Those that a worker is to tell of, once the message was not met for a while."""
    for job_id in herd.redis.zrange(UNTOLD, 0, -1):
        herd.redis.zincrby(UNTOLD, -5000, job_id)
    return run_call(herd.redis, herd.ledger.owed(10, AGAIN_MS))


def cancel(herd: Herd) -> None:
    run_call(herd.redis, herd.ledger.cancel("a"))


def run_late(herd: Herd) -> None:
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    herd.redis.zadd("herd:default:pending:deadlines", {"a": 1})
    sweep(herd)


def stay_unserved(herd: Herd) -> None:
    """In a queue that nobody reads."""
    herd.redis.hset("herd:default:sweep", "awake", 1)
    herd.redis.hset(herd.ledger.job_key("a"), "due_ms", 1)
    herd.pass_time("a", 3_600_000)
    sweep(replace(herd, ledger=replace(herd.ledger, unserved_timeout_s=1)))


def lose_its_record(herd: Herd) -> None:
    herd.redis.delete(herd.ledger.job_key("a"))
    herd.claim("a")


def kill_workers(herd: Herd) -> None:
    for owner in ("one", "two", "three"):
        herd.claimed("a", owner)
        herd.redis.hset(herd.ledger.job_key("a"), "computing", herd.field("a", "epoch"))
        herd.pass_lease("a")
    herd.claim("a", "four")


ENDS = [cancel, run_late, stay_unserved, lose_its_record, kill_workers]


@pytest.mark.parametrize("be_ended", ENDS)
def test_whatever_ends_it_some_worker_is_to_tell_until_it_has(
    herd: Herd, be_ended: Callable[[Herd], None]
) -> None:
    herd.submit("a")
    envelope = herd.redis.hget(herd.ledger.job_key("a"), "envelope")
    be_ended(herd)
    assert herd.field("a", "state") in ("cancelled", "failed")
    assert run_call(herd.redis, herd.ledger.owed(10, AGAIN_MS)) == [], "its message may be met at once"
    (job,) = due(herd)
    assert job == OwedJob("a", b"" if be_ended is lose_its_record else envelope)
    assert run_call(herd.redis, herd.ledger.owed(10, AGAIN_MS)) == [], "another worker is to do it meanwhile"
    run_call(herd.redis, herd.ledger.settle("a"))
    assert not herd.redis.exists(UNTOLD)
    assert herd.field("a", "settled") == "1"


def test_these_are_the_scripts_that_end_what_no_worker_has() -> None:
    """Each is called by one of the ways above; of what PURGE ends nobody is told."""
    assert {one.name for one in all_scripts() if "end" in one.files} == {"cancel", "claim", "purge", "sweep"}


def test_of_a_purged_job_nobody_is_told(herd: Herd) -> None:
    herd.submit("a")
    run_call(herd.redis, herd.ledger.purge("a"))
    assert due(herd) == []


def test_a_job_whose_worker_ends_it_is_told_by_that(herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"), end("a", 2, 0))
    assert due(herd) == []


def test_what_another_redis_does_not_take_is_owed_from_then_on(herd: Herd) -> None:
    herd.submit("a")
    cancel(herd)
    run_call(herd.redis, herd.ledger.owe("a", 3_600_000, has_sent_links=False))
    assert due(herd) == []
    assert not herd.redis.exists(UNTOLD)


def test_a_new_job_of_the_id_is_not_told_of(herd: Herd) -> None:
    herd.submit("a")
    cancel(herd)
    herd.redis.delete(herd.ledger.job_key("a"), herd.ledger.events_key("a"), QUEUE)
    herd.submit("a")
    assert due(herd) == []
    assert not herd.redis.exists(UNTOLD)


def test_a_spoilt_list_holds_up_no_end(herd: Herd) -> None:
    herd.submit("a")
    herd.redis.set(UNTOLD, "somebody else's")
    cancel(herd)
    assert herd.field("a", "state") == "cancelled"
    assert herd.events("a")[-1].type == "end"
    herd.redis.zadd("herd:default:owed", {"a": 1})
    assert [one.job_id for one in run_call(herd.redis, herd.ledger.owed(10, AGAIN_MS))] == ["a"]


@pytest.mark.parametrize("due", ["owed", "untold"])
def test_a_spoilt_record_keeps_no_other_job_from_being_told(herd: Herd, due: str) -> None:
    herd.redis.set(herd.ledger.job_key("a"), "somebody else's")
    herd.redis.zadd(f"herd:default:{due}", {"a": 1, "b": 2})
    told = run_call(herd.redis, herd.ledger.owed(10, AGAIN_MS))
    assert told == [OwedJob("a", b""), OwedJob("b", b"")]
