"""Pauses in the ledger: who hears of them, when they end, and what they leave alone."""

from typing import Any

import pytest

from llama_herd.tasks.ledger.answers import Renewal
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.overview import Overview
from llama_herd.tasks.ledger.pauses import FOR_GOOD_MS, Pauses
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Beat, BeatAnswer, beat
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.chaos.harness.patience import PATIENCE_S
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, sweep
from tests.tasks.ledger.test_overview import grow_old

pytestmark = pytest.mark.redis

OURS = Pauses()


def heard(redis: Any, name: str = "w@test", tenant: str = "default", state: str = "ready") -> BeatAnswer:
    """What a worker of the model `tales` hears."""
    status = WorkerStatus(name=name, state=state, model="tales", device="cpu", slots=4)
    (answer,) = run_call(redis, beat([Beat(Ledger(tenant), status)]))
    return answer._replace(num_free=0, num_others=0, author=None)


def paused_until(redis: Any, queue: str = QUEUE) -> int:
    """When the pause of a queue ends, as QUEUES tells it."""
    counts = run_call(redis, Overview().counts(queue))
    return next(one.pause_ends_ms for one in counts.queues if one.queue == queue)


def test_a_pause_is_heard_by_each_worker_of_its_queue_until_it_is_ended(redis: Any) -> None:
    assert heard(redis) == BeatAnswer(0, False, False)
    assert run_call(redis, OURS.pause(QUEUE)) is None
    assert [heard(redis, name) for name in ("one", "two")] == [BeatAnswer(0, True, False)] * 2
    assert paused_until(redis) == FOR_GOOD_MS
    assert run_call(redis, OURS.resume(QUEUE)) is True
    assert heard(redis) == BeatAnswer(0, False, False)
    assert paused_until(redis) == 0
    assert run_call(redis, OURS.resume(QUEUE)) is False


def test_a_drain_is_heard_by_its_worker_alone(redis: Any) -> None:
    assert run_call(redis, OURS.drain("one")) is None
    assert (heard(redis, "one"), heard(redis, "two")) == (
        BeatAnswer(0, False, True),
        BeatAnswer(0, False, False),
    )
    assert run_call(redis, OURS.undo_drain("one")) is True
    assert heard(redis, "one").is_drained is False


def test_another_queue_and_another_tenant_hear_nothing(redis: Any) -> None:
    run_call(redis, OURS.pause("herd.other"))
    run_call(redis, Pauses("acme").pause("herd.acme:tales"))
    run_call(redis, Pauses("acme").drain("w@test"))
    assert heard(redis) == BeatAnswer(0, False, False)
    assert heard(redis, tenant="acme") == BeatAnswer(0, True, True)


def test_it_ends_by_itself_after_its_time(redis: Any) -> None:
    seconds, micros = redis.time()
    until_ms = run_call(redis, OURS.pause(QUEUE, 60_000))
    now_ms = 1000 * seconds + micros // 1000
    assert until_ms is not None
    assert 60_000 <= until_ms - now_ms < 70_000
    assert paused_until(redis) == until_ms
    assert run_call(redis, OURS.queues_after(now_ms)) == {QUEUE}
    redis.zadd(OURS.key("paused"), {QUEUE: now_ms - 1})  # the time has passed
    assert heard(redis).is_paused is False
    assert paused_until(redis) == 0
    assert run_call(redis, OURS.queues_after(now_ms)) == frozenset()
    assert run_call(redis, OURS.resume(QUEUE)) is False


def test_a_second_pause_replaces_the_first_and_old_ones_are_forgotten(redis: Any) -> None:
    redis.zadd(OURS.key("paused"), {"herd.old": 1})
    run_call(redis, OURS.pause(QUEUE, 60_000))
    assert run_call(redis, OURS.pause(QUEUE)) is None
    assert redis.zrange(OURS.key("paused"), 0, -1) == [QUEUE.encode()]
    assert paused_until(redis) == FOR_GOOD_MS


def test_workers_are_told_at_once(redis: Any) -> None:
    with redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(OURS.notices_to_all)
        channel.get_message(timeout=PATIENCE_S)
        for call in (OURS.pause(QUEUE), OURS.resume(QUEUE), OURS.drain("w"), OURS.undo_drain("w")):
            run_call(redis, call)
            assert channel.get_message(timeout=PATIENCE_S)["type"] == "message"


def test_a_paused_queue_is_listed_though_nothing_is_in_it_and_nobody_serves_it(redis: Any) -> None:
    run_call(redis, OURS.pause("herd.new"))
    run_call(redis, OURS.pause("herd.acme:theirs"))  # of another tenant: no script touches its lists
    assert [one.queue for one in run_call(redis, Overview().counts()).queues] == ["herd.new"]


def test_a_spoilt_key_pauses_nothing_and_hides_nothing(redis: Any, herd: Herd) -> None:
    herd.submit("a")
    for name in ("paused", "drained"):
        redis.set(OURS.key(name), "no pauses")
    assert heard(redis) == BeatAnswer(0, False, False)
    assert paused_until(redis) == 0
    assert sweep(herd) is not None


def test_jobs_are_accepted_claimed_jobs_go_on_and_deadlines_end_jobs(redis: Any, herd: Herd) -> None:
    herd.submit("begun")
    epoch = herd.claimed("begun").epoch
    run_call(redis, OURS.pause(QUEUE))
    herd.submit("waits")
    herd.submit("late", JOB.model_copy(update={"timeout_s": 60.0}))
    redis.hset(herd.ledger.job_key("late"), "deadline_ms", 1)
    redis.zadd("herd:default:pending:deadlines", {"late": 1})
    sweep(herd)
    assert herd.renew("begun", "one", epoch).kind is Renewal.OK
    states = [herd.field(name, "state") for name in ("begun", "waits", "late")]
    assert states == ["running", "queued", "failed"]


def test_jobs_of_a_queue_that_is_paused_do_not_end_since_nobody_ever_served_it(redis: Any) -> None:
    herd = Herd(redis, Ledger(lease_ms=60_000, unserved_timeout_s=1))
    redis.hset(SWEEP, "awake", 1)
    herd.submit("a")
    grow_old(herd, "a")
    run_call(redis, OURS.pause(QUEUE))
    sweep(herd)
    assert herd.field("a", "state") == "queued"
    run_call(redis, OURS.resume(QUEUE))
    sweep(herd)
    assert herd.field("a", "state") == "failed"
