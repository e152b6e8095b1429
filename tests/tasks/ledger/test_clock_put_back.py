"""The clock of Redis put back by ten minutes: what was written before that holds nobody up."""

import pytest

from llama_herd.tasks.ledger.answers import Busy, Settling, Swept, Yours
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.tasks.herd import QUEUE, Herd, age_messages, ids, sweep

pytestmark = pytest.mark.redis

AHEAD_MS = 600_000
LEASES = "herd:default:leases"


def now_ms(herd: Herd) -> int:
    seconds, micros = herd.redis.time()
    return int(seconds * 1000 + micros // 1000)


def put_back(herd: Herd, *job_ids: str) -> None:
    """What is written of these jobs so far, and of their messages, was written ten minutes from now."""
    for job_id in job_ids:
        key = herd.ledger.job_key(job_id)
        for field in ("submitted_ms", "due_ms", "lease", "pushed_ms"):
            if int(herd.redis.hget(key, field) or 0):
                herd.redis.hincrby(key, field, AHEAD_MS)
        herd.pass_time(job_id, -AHEAD_MS)
        if herd.redis.zscore(LEASES, job_id) is not None:
            herd.redis.zincrby(LEASES, AHEAD_MS, job_id)
    age_messages(herd, -AHEAD_MS)


def test_a_waiting_job_is_claimed_and_not_taken_for_one_of_later(herd: Herd) -> None:
    herd.submit("a")
    put_back(herd, "a")
    assert isinstance(herd.claim("a"), Yours)
    assert herd.claimed("a").waited_s == 0


def test_a_dead_workers_job_is_another_ones_after_a_lease(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.redis.rpop(QUEUE)
    put_back(herd, "a")
    assert sweep(herd) == Swept()
    left_ms = int(herd.field("a", "lease")) - now_ms(herd)
    assert 0 < left_ms <= herd.ledger.lease_ms
    assert herd.redis.zscore(LEASES, "a") == int(herd.field("a", "lease"))
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))
    assert isinstance(herd.claim("a", "two"), Yours)


def test_a_job_that_was_given_up_before_is_claimed_at_once_and_pushed_soon(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.fall_silent("a")
    sweep(herd)
    herd.redis.delete(QUEUE)
    put_back(herd, "a")
    herd.redis.hset(herd.ledger.job_key("a"), "lease", now_ms(herd) + AHEAD_MS)
    sweep(herd)
    assert herd.redis.zscore(LEASES, "a") - now_ms(herd) <= SWEEP_PATIENCE_MS
    assert isinstance(herd.claim("a", "two"), Yours)


def test_an_owner_whose_lease_no_sweep_has_cut_yet_keeps_its_job(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    put_back(herd, "a")
    assert isinstance(herd.claim("a", "two"), Busy)


def test_many_long_waits_hide_no_lease(herd: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_herd.tasks.ledger.sweep.SWEEP_MAX_TAKEN", 2)
    for name in ("lost", *"abcdef"):
        herd.submit(name)
        herd.claim(name, "one")
    for name in "abcdef":  # given up, and pushed in vain often enough to wait long
        herd.redis.hset(herd.ledger.job_key(name), mapping={"lease": 1, "waits": 9})
        herd.redis.zadd(LEASES, {name: now_ms(herd) + 300_000})
    put_back(herd, "lost")
    for _ in range(200):
        sweep(herd)
        if herd.redis.zscore(LEASES, "lost") - now_ms(herd) <= herd.ledger.lease_ms:
            break
    assert int(herd.field("lost", "lease")) - now_ms(herd) <= herd.ledger.lease_ms


@pytest.mark.parametrize("behind", [False, True], ids=["an empty list", "younger messages"])
def test_a_lost_message_comes_back_after_our_patience(herd: Herd, behind: bool) -> None:
    herd.submit("a")
    herd.redis.delete(QUEUE)
    put_back(herd, "a")
    if behind:
        herd.submit("b")
    assert sweep(herd) == Swept()
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))


def test_messages_from_before_have_overtaken_none_that_came_after(herd: Herd) -> None:
    for name in "ab":
        herd.submit(name)
    put_back(herd, "a", "b")
    herd.submit("c")
    herd.pass_time("c", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept()
    assert ids(herd) == ["a", "b", "c"]


def test_among_messages_from_before_a_lost_one_is_found_as_ever(herd: Herd) -> None:
    for name in "ab":
        herd.submit(name)
    herd.redis.rpop(QUEUE)
    put_back(herd, "a", "b")
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))
    assert ids(herd) == ["a", "b"]


def test_a_dead_workers_job_before_such_messages_is_pushed_once(herd: Herd) -> None:
    for name in "ab":
        herd.submit(name)
    herd.claim("a", "one")
    herd.redis.rpop(QUEUE)
    put_back(herd, "b")
    for expected in (("a",), (), ()):
        herd.fall_silent("a")
        assert sweep(herd) == Swept(expected)
    assert ids(herd) == ["a", "b"]


def test_who_was_to_settle_a_job_keeps_it_no_longer_than_it_may(herd: Herd) -> None:
    herd.submit("a")
    run_call(herd.redis, herd.ledger.cancel("a"))
    key = herd.ledger.job_key("a")
    call = herd.ledger.settling("a", "two", for_ms=60_000)
    run_call(herd.redis, herd.ledger.settling("a", "one", for_ms=60_000))
    herd.redis.hincrby(key, "settling_until", AHEAD_MS)
    assert run_call(herd.redis, call) == Busy(60_000)
    assert isinstance(run_call(herd.redis, call), Busy)
    assert not herd.redis.hexists(key, "settling_late"), "its turn is not over"
    herd.redis.hincrby(key, "settling_until", -60_001)
    assert run_call(herd.redis, call) == Busy(60_000)  # once more: a live worker asks again meanwhile
    herd.redis.hincrby(key, "settling_until", -60_001)
    assert isinstance(run_call(herd.redis, call), Settling)


def test_the_rate_at_which_jobs_are_taken_counts_anew(herd: Herd) -> None:
    herd.submit("a")
    herd.redis.hset("herd:default:waiting", mapping={f"{QUEUE}:taken": 500, f"{QUEUE}:since": 2**52})
    herd.claim("a")
    assert herd.redis.hget("herd:default:waiting", f"{QUEUE}:taken") == b"1"


def test_a_worker_that_has_reported_before_is_no_longer_listed_until_it_does_again(herd: Herd) -> None:
    reports = Reports()
    status = WorkerStatus(name="w", state="ready", model="tales", device="cpu", slots=4)
    run_call(herd.redis, reports.report_worker(status))
    herd.redis.zincrby("herd:default:workers", AHEAD_MS, "w")
    assert run_call(herd.redis, reports.workers()) == []
    run_call(herd.redis, reports.report_worker(status))
    assert [one.name for one in run_call(herd.redis, reports.workers())] == ["w"]
