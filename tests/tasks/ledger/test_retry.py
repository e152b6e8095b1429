"""RETRY: a job whose attempt has failed waits for its next one, with all that was recorded."""

from typing import Any

import pytest

from llama_herd.tasks.ledger.answers import Cancellation, Early, Emission, Emitted, Ended, Purge, Swept, Yours
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from tests.tasks.herd import FAILURE, Herd, end, ids, started, sweep, token

pytestmark = pytest.mark.redis

DELAY_MS = 60_000


def put_back(herd: Herd, owner: str = "one", epoch: int = 1, seq: int = 2) -> Emitted:
    return herd.put_back("a", owner, epoch, seq=seq, delay_ms=DELAY_MS)


def let_it_be_due(herd: Herd) -> None:
    """Move the time of the next try to now."""
    due_ms = 1000 * herd.redis.time()[0]
    herd.redis.hset(herd.ledger.job_key("a"), "retry_ms", due_ms)
    for index in ("pending", "delayed"):
        herd.redis.zadd(f"herd:default:{index}", {"a": due_ms}, xx=True)


def record(herd: Herd) -> Any:
    return run_call(herd.redis, herd.ledger.record("a"))


def waiting(herd: Herd) -> dict[str, str]:
    counts = herd.redis.hgetall("herd:default:waiting").items()
    return {name.decode().rpartition(":")[2]: value.decode() for name, value in counts}


def test_it_waits_without_a_message_and_goes_on_where_its_events_end(running: Herd) -> None:
    running.redis.delete("herd.tales")  # its message is acknowledged
    assert put_back(running).kind is Emission.OK
    found = record(running)
    assert (found.state, found.owner, found.retries, found.retries_left) == ("queued", None, 1, 2)
    assert found.retry_error == FAILURE
    assert not any(isinstance(event, End) for event in running.events("a"))
    assert (waiting(running)["jobs"], waiting(running)["delayed"]) == ("1", "1")
    assert sweep(running) == Swept()
    assert ids(running) == []
    let_it_be_due(running)
    sweep(running)
    assert ids(running) == ["a"]
    claimed = running.claimed("a", "two")
    assert (claimed.epoch, claimed.n, claimed.seq, claimed.attempts, claimed.retries) == (2, 2, 2, 1, 1)
    assert record(running).retry_ms is None
    events = [started("a", 3, epoch=2, i=2), token("a", 4, 2, 7, epoch=2), end("a", 5, 3, epoch=2)]
    assert running.kinds("two", *events) == ["ok"] * 3
    assert [event.seq for event in running.events("a")] == [1, 2, 3, 4, 5]
    assert (record(running).state, record(running).error) == ("done", None)


def test_its_time_is_that_of_redis_and_what_it_waited_counts_from_its_submission(running: Herd) -> None:
    due_ms = record(running).due_ms
    put_back(running)
    found = record(running)
    now_ms = 1000 * running.redis.time()[0]
    assert abs(found.retry_ms - now_ms - DELAY_MS) < 10_000
    assert found.due_ms == due_ms
    assert running.redis.zscore("herd:default:delayed", "a") == found.retry_ms
    (place,) = run_call(running.redis, running.ledger.places(["a"]))
    assert place is not None
    assert place.wait_s is not None
    assert place.wait_s > DELAY_MS / 2000


def test_a_message_that_comes_meanwhile_is_early(running: Herd) -> None:
    put_back(running)
    assert running.claim("a", "two") == Early()


def test_the_same_call_again_changes_nothing_and_is_answered_alike(running: Herd) -> None:
    assert [put_back(running).kind for _ in range(3)] == [Emission.OK] * 3
    assert record(running).retries == 1
    assert waiting(running)["delayed"] == "1"
    let_it_be_due(running)
    assert isinstance(running.claim("a", "one"), Yours)
    assert put_back(running).kind is Emission.FENCED


def test_it_is_no_death_and_forgives_none(running: Herd) -> None:
    running.redis.hset(running.ledger.job_key("a"), "deaths", 1)
    put_back(running)
    let_it_be_due(running)
    assert running.claimed("a", "two").deaths == 1
    assert record(running).deaths == 1


def test_a_death_is_no_retry(running: Herd) -> None:
    running.pass_lease("a")
    claimed = running.claimed("a", "two")
    assert (claimed.deaths, claimed.retries) == (1, 0)


@pytest.mark.parametrize(("owner", "epoch"), [("two", 1), ("one", 2)])
def test_nobody_but_its_owner_puts_it_back(running: Herd, owner: str, epoch: int) -> None:
    assert put_back(running, owner, epoch).kind is Emission.FENCED
    assert record(running).state == "running"


def test_who_has_lost_it_does_not_put_it_back_though_it_waits(running: Herd) -> None:
    """It was released, or another attempt has put it back."""
    run_call(running.redis, running.ledger.release("a", "one", 1))
    assert (put_back(running).kind, record(running).retries) == (Emission.FENCED, 0)
    running.claimed("a", "two")
    assert put_back(running, "two", 2).kind is Emission.OK
    assert (put_back(running).kind, record(running).retries) == (Emission.FENCED, 1)
    let_it_be_due(running)
    assert running.claimed("a", "one").epoch == 3
    assert put_back(running, "one", 3).kind is Emission.OK
    assert record(running).retries == 2


def test_what_its_owner_sends_afterwards_is_fenced(running: Herd) -> None:
    put_back(running)
    assert running.kinds("one", token("a", 3, 2)) == ["fenced"]


def test_one_that_has_ended_or_is_to_end_is_not_put_back(running: Herd) -> None:
    run_call(running.redis, running.ledger.cancel("a"))
    assert put_back(running) == Emitted(Emission.CANCELLED, 2, 2, "cancelled")
    running.emit("one", end("a", 3, 2, finish_reason="cancelled"))
    assert put_back(running, seq=3).kind is Emission.FINISHED


def test_events_that_redis_has_lost_come_first(running: Herd) -> None:
    assert put_back(running, seq=4) == Emitted(Emission.GAP, 2, 2)
    assert record(running).retries == 0


@pytest.mark.parametrize(("left_ms", "kind"), [(DELAY_MS // 2, Emission.LATE), (2 * DELAY_MS, Emission.OK)])
def test_a_try_begins_before_the_deadline_or_not_at_all(herd: Herd, left_ms: int, kind: Emission) -> None:
    deadline_ms = 1000 * herd.redis.time()[0] + left_ms
    herd.submit("a", GenerationJob(prompt="x", deadline_ms=deadline_ms))
    herd.claim("a")
    herd.emit("one", started("a"))
    assert put_back(herd, seq=1).kind is kind
    assert (record(herd).state == "running") == (kind is Emission.LATE)


def test_a_deadline_ends_it_while_it_waits(herd: Herd) -> None:
    seconds = herd.redis.time()[0]
    herd.submit("a", GenerationJob(prompt="x", deadline_ms=1000 * seconds + 2 * DELAY_MS))
    herd.claim("a")
    herd.emit("one", started("a"))
    put_back(herd, seq=1)
    past_ms = 1000 * (seconds - 1)
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", past_ms)
    herd.redis.zadd("herd:default:pending:deadlines", {"a": past_ms}, xx=True)
    sweep(herd)
    *_, last = herd.events("a")
    assert isinstance(last, End)
    assert (last.finish_reason, last.attempts) == ("deadline", 1)
    assert waiting(herd) == {}


def test_it_is_cancelled_and_purged_while_it_waits(running: Herd) -> None:
    put_back(running)
    assert run_call(running.redis, running.ledger.cancel("a", "revoked")) is Cancellation.CANCELLED
    *_, last = running.events("a")
    assert isinstance(last, End)
    assert (last.finish_reason, last.n, last.seq) == ("cancelled", 2, 3)
    assert record(running).retry_ms is None
    assert not {"jobs", "tokens", "delayed", "delayedtokens"} & waiting(running).keys()
    let_it_be_due(running)
    assert running.claim("a", "two") is Ended.FINISHED


def test_a_purge_leaves_nothing_of_it(running: Herd) -> None:
    put_back(running)
    assert run_call(running.redis, running.ledger.purge("a")) is Purge.PURGED
    assert running.redis.exists("herd:default:delayed", "herd:default:pending") == 0
    assert running.events("a") == []


def test_a_spoilt_index_leaves_it_its_owners(running: Herd) -> None:
    running.redis.set("herd:default:delayed", "spoilt")
    with pytest.raises(Exception, match="WRONGTYPE"):
        put_back(running)
    found = record(running)
    assert (found.state, found.owner, found.retries) == ("running", "one", 0)
    running.redis.delete("herd:default:delayed")
