"""SWEEP: what is pushed again, what is not, and how often."""

import json
from collections.abc import Callable

import pytest

from llama_herd.tasks.ledger.answers import Adopt, Cancellation, CancelReason, Ended, Release, Swept, Yours
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.sweep import SWEEP_MAX_LOOKS, SWEEP_MAX_PUSHES, SWEEP_PATIENCE_MS, sweep_tenant
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import lane_of
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, age_messages, end, ids, started, sweep, token

pytestmark = pytest.mark.redis


def sweep_after(herd: Herd, passed_ms: int) -> Swept:
    """A sweep that comes so long after the last one, whose grace passes meanwhile, too."""
    for name in ("last", "hold"):
        herd.redis.hincrby(SWEEP, name, -passed_ms)
    return run_call(herd.redis, sweep_tenant(herd.ledger))


def pass_push(herd: Herd, job_id: str) -> None:
    """Let a job's message have been pushed again an hour earlier, if it was."""
    key = herd.ledger.job_key(job_id)
    if herd.redis.hexists(key, "pushed_ms"):
        herd.redis.hincrby(key, "pushed_ms", -3_600_000)


def release(herd: Herd, job_id: str) -> None:
    """A worker that stops gives a job back, whose message nobody takes for a while."""
    assert run_call(herd.redis, herd.ledger.release(job_id, "one", 1)) is Release.RELEASED
    herd.pass_time(job_id, 20_000)


def lose_message(herd: Herd) -> None:
    """Somebody pops the message nearest the consuming end and dies."""
    herd.redis.rpop(QUEUE)


def test_a_running_job_comes_back_when_its_lease_is_over(herd: Herd) -> None:
    for name in "ab":
        herd.submit(name)
        herd.claim(name, "one")
        lose_message(herd)
    assert sweep(herd) == Swept()
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))
    assert ids(herd) == ["a"]
    assert isinstance(herd.claim("a", "two"), Yours)


def test_it_waits_before_it_is_pushed_again_and_longer_each_time(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    tags, waits = [], []
    for _ in range(10):
        tags += [json.loads(message)["properties"]["delivery_tag"] for message in herd.messages()]
        lose_message(herd)
        herd.fall_silent("a")
        pass_push(herd, "a")
        assert sweep(herd) == Swept(("a",))
        assert sweep(herd) == Swept()
        wait_ms = herd.redis.zscore("herd:default:leases", "a") - herd.redis.time()[0] * 1000
        waits.append(round(wait_ms / SWEEP_PATIENCE_MS))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert len(set(tags)) == 10
    herd.claim("a", "two")
    assert herd.field("a", "waits") == "0"


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_a_dead_workers_job_is_not_copied_while_its_message_waits_however_long(
    herd: Herd, priority: int
) -> None:
    """Its own worker is gone, and those of other models sweep."""
    own = QUEUE + lane_of(priority)
    herd.submit("a", JOB.model_copy(update={"priority": priority}))
    herd.claim("a", "one")
    herd.redis.rpop(own)
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))
    for _ in range(3):
        herd.fall_silent("a")
        pass_push(herd, "a")
        age_messages(herd, 3_600_000, own)
        assert sweep(herd) == Swept()
    assert herd.redis.llen(own) == 1
    herd.redis.rpop(own)
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))


def test_a_message_that_was_claimed_is_not_taken_for_one_that_waits(herd: Herd) -> None:
    """It had been pushed by a sweep itself, just before others came."""
    herd.submit("a")
    lose_message(herd)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))
    lose_message(herd)
    herd.claim("a", "one")
    herd.submit("b")
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))


def test_a_push_from_before_the_clock_was_put_back_does_not_keep_another_from_it(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    lose_message(herd)
    herd.redis.hset(herd.ledger.job_key("a"), "pushed_ms", herd.redis.time()[0] * 1000 + 3_600_000)
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))


@pytest.mark.parametrize("reason", ["deadline", "cancelled"])
@pytest.mark.parametrize("leave", [Herd.fall_silent, release], ids=["dead", "released"])
def test_a_job_that_nobody_runs_any_more_is_ended_without_a_worker_of_its_queue(
    herd: Herd, leave: Callable[[Herd, str], None], reason: CancelReason
) -> None:
    """Its own worker is gone, and those of other models sweep."""
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim("a", "one")
    herd.emit("one", started("a"), token("a", 2, 0))
    if reason == "deadline":
        herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    else:
        assert run_call(herd.redis, herd.ledger.cancel("a")) is Cancellation.ASKED
    leave(herd, "a")
    assert sweep(herd) == Swept()
    last = herd.events("a")[-1]
    assert isinstance(last, End)
    assert (last.seq, last.n, last.finish_reason, last.worker) == (3, 1, reason, "w")
    assert herd.redis.exists("herd:default:pending", "herd:default:leases", "herd:default:waiting") == 0
    assert herd.claim("a", "two") is Ended.FINISHED


def test_a_job_that_was_released_with_a_push_is_not_pushed_once_more(herd: Herd) -> None:
    """It is taken next, and neither it nor what came while a worker held it looks overtaken."""
    herd.submit("a")
    lose_message(herd)
    claimed = herd.claimed("a")
    herd.redis.hincrby(herd.ledger.job_key("a"), "due_ms", -60_000)
    herd.submit("b")
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch, push=True))
    assert sweep(herd) == Swept()
    assert ids(herd) == ["a", "b"]


def test_a_job_that_was_released_is_not_pushed_before_its_message_can_be_back(herd: Herd) -> None:
    herd.submit("a")
    lose_message(herd)
    claimed = herd.claimed("a")
    herd.redis.hincrby(herd.ledger.job_key("a"), "due_ms", -60_000)
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch))
    assert sweep(herd) == Swept()
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))


def test_a_lost_message_comes_back_while_the_queue_is_empty(herd: Herd) -> None:
    herd.submit("a")
    lose_message(herd)
    herd.pass_time("a", SWEEP_PATIENCE_MS - 1_000)
    assert sweep(herd) == Swept()
    herd.pass_time("a", 1_000)
    assert sweep(herd) == Swept(("a",))
    assert ids(herd) == ["a"]
    lose_message(herd)
    assert sweep(herd) == Swept()
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept()


def test_the_last_message_of_a_backlog_is_not_copied_on_its_way_to_a_claim(herd: Herd) -> None:
    herd.submit("a")
    herd.pass_time("a", 60_000)
    age_messages(herd, 60_000)
    assert sweep(herd) == Swept()
    lose_message(herd)
    assert sweep(herd) == Swept()
    assert sweep(herd) == Swept(("a",))


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_a_lost_message_comes_back_while_the_queue_is_full_and_nothing_looks_overtaken_by_it(
    herd: Herd, priority: int
) -> None:
    own, job = QUEUE + lane_of(priority), JOB.model_copy(update={"priority": priority})
    herd.submit("a", job)
    herd.redis.rpop(own)
    for name in "bcd":
        herd.submit(name, job)
    for name in "abcd":
        herd.pass_time(name, 30_000)
    age_messages(herd, 30_000, own)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert [sweep(herd) for _ in range(3)] == [Swept(("a",)), Swept(), Swept()]
    assert ids(herd, own) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_jobs_of_a_dead_worker_pass_the_backlog_and_nothing_looks_overtaken(
    herd: Herd, priority: int
) -> None:
    """However late they were accepted: one more message of each is there, and none of the others."""
    own, job = QUEUE + lane_of(priority), JOB.model_copy(update={"priority": priority})
    for name in ("long", "short"):
        herd.submit(name, job)
        herd.claim(name, "one")
        herd.redis.rpop(own)
        age_messages(herd, 60_000, own)
    for name in "bcd":
        herd.submit(name, job)
        herd.pass_time(name, 30_000)
    age_messages(herd, 30_000, own)
    herd.fall_silent("long")
    assert sweep(herd) == Swept(("long",))
    herd.fall_silent("short")
    assert sweep(herd) == Swept(("short",))
    for name in ("long", "short"):
        herd.fall_silent(name)
    assert sweep(herd) == Swept()
    assert ids(herd, own) == ["short", "long", "b", "c", "d"]


def test_a_backlog_is_not_copied_however_old(herd: Herd) -> None:
    for name in "abcd":
        herd.submit(name)
        herd.pass_time(name, 3_600_000)
    age_messages(herd, 3_600_000)
    assert sweep(herd) == Swept()
    assert ids(herd) == ["a", "b", "c", "d"]


def test_messages_of_others_and_of_kombu_do_not_hide_the_front(herd: Herd) -> None:
    herd.submit("a")
    herd.pass_time("a", 60_000)
    age_messages(herd, 60_000)
    own = herd.redis.rpop(QUEUE)
    # kombu writes a message that it puts back in its own way.
    herd.redis.rpush(QUEUE, json.dumps(json.loads(own)), b'{"properties":{"delivery_tag":"x"}}', b"junk")
    assert sweep(herd) == Swept()


def test_behind_foreign_messages_alone_age_decides(herd: Herd) -> None:
    herd.submit("a")
    lose_message(herd)
    herd.redis.rpush(QUEUE, *[b"foreign"] * 40)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))


def test_each_queue_has_its_own_front(herd: Herd) -> None:
    for name, queue in (("a", "herd.one"), ("b", "herd.two")):
        run_call(herd.redis, herd.ledger.submit(name, JOB, Envelope.for_job(name, queue)))
        herd.pass_time(name, SWEEP_PATIENCE_MS)
    herd.redis.delete("herd.one")
    herd.redis.delete("herd.two")
    run_call(herd.redis, herd.ledger.submit("c", JOB, Envelope.for_job("c", "herd.two")))
    herd.pass_time("b", 1_000 - SWEEP_PATIENCE_MS)
    assert sweep(herd) == Swept(("a",))
    assert herd.redis.llen("herd.one") == 1


def test_queues_that_come_and_go_leave_nothing_in_the_sweep(herd: Herd) -> None:
    herd.submit("a")
    sweep(herd)
    fields = set(herd.redis.hkeys(SWEEP))
    for queue in ("herd.one", "herd.two"):
        run_call(herd.redis, herd.ledger.submit(queue, JOB, Envelope.for_job(queue, queue)))
        sweep(herd)
        assert set(herd.redis.hkeys(SWEEP)) == fields | {f"front:{queue}".encode()}
        run_call(herd.redis, herd.ledger.cancel(queue))
    sweep(herd)
    assert set(herd.redis.hkeys(SWEEP)) == fields


def test_a_bare_message_comes_back_with_its_links_and_without_its_prompt(herd: Herd) -> None:
    request = {"id": "a", "root_id": "r", "argsrepr": "secret"}
    envelope = Envelope.from_request(request, {"callbacks": ["link"], "chain": None}, QUEUE)
    run_call(herd.redis, herd.ledger.claim("a", "one", job=GenerationJob(prompt="secret"), envelope=envelope))
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))
    (message,) = herd.messages()
    assert b"secret" not in message
    assert json.loads(message)["headers"]["root_id"] == "r"


def test_a_sweep_pushes_so_many_and_the_next_one_goes_on(herd: Herd) -> None:
    names = [f"job-{number:04}" for number in range(SWEEP_MAX_PUSHES + 10)]
    for name in names:
        herd.submit(name)
        herd.pass_time(name, 20_000)
    herd.redis.delete(QUEUE)
    first, second = sweep(herd).jobs, sweep(herd).jobs
    assert len(first) == SWEEP_MAX_PUSHES
    assert sorted(first + second) == names


def lose_behind_a_backlog(herd: Herd) -> None:
    """The message of one model's job `lost`, while more jobs of another wait than a sweep looks at."""
    for number in range(SWEEP_MAX_LOOKS + 100):
        herd.submit(f"job-{number}")
        herd.pass_time(f"job-{number}", 3_600_000)
    age_messages(herd, 3_600_000)
    run_call(herd.redis, herd.ledger.submit("lost", JOB, Envelope.for_job("lost", "herd.other")))
    herd.redis.delete("herd.other")
    herd.pass_time("lost", SWEEP_PATIENCE_MS)


@pytest.mark.long
def test_a_backlog_of_one_model_does_not_hide_the_lost_job_of_another(herd: Herd) -> None:
    lose_behind_a_backlog(herd)
    assert sweep(herd).jobs + sweep(herd).jobs == ("lost",)


@pytest.mark.long
def test_a_backlog_whose_deadlines_pass_does_not_hide_it_either(herd: Herd) -> None:
    lose_behind_a_backlog(herd)
    found: list[str] = []
    for number in range(3):
        herd.redis.hset(herd.ledger.job_key(f"job-{number}"), "deadline_ms", 1)
        found += sweep(herd).jobs
    assert found == ["lost"]


def test_the_look_goes_back_to_the_oldest_when_it_reached_the_end(herd: Herd) -> None:
    herd.submit("a")
    lose_message(herd)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    herd.redis.hset(SWEEP, "offset", 1)
    assert sweep(herd).jobs + sweep(herd).jobs == ("a",)


def test_a_second_sweep_at_once_does_nothing(herd: Herd) -> None:
    sweep(herd)
    herd.submit("a")
    herd.claim("a")
    herd.fall_silent("a")
    assert run_call(herd.redis, sweep_tenant(herd.ledger)) == Swept()
    assert sweep(herd) == Swept(("a",))


def test_after_a_gap_owners_get_one_lease_to_come_back(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.fall_silent("a")
    assert run_call(herd.redis, sweep_tenant(herd.ledger)) == Swept(held=True)
    # The gap is over, the time of grace is not.
    assert sweep_after(herd, 20_000) == Swept(held=True)
    # It is over now.
    herd.redis.hincrby(SWEEP, "hold", -61_000)
    assert sweep_after(herd, 20_000) == Swept(("a",))


@pytest.mark.parametrize("between_ms", [[20_000], [20_000, 20_000]])
def test_a_gap_that_is_over_shortens_no_grace_of_those_after_it(herd: Herd, between_ms: list[int]) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.fall_silent("a")
    for passed_ms in (600_000, *between_ms, *3 * [600_000]):
        assert sweep_after(herd, passed_ms) == Swept(held=True)


def test_sweepers_that_are_always_late_sweep_each_fourth_time(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.fall_silent("a")
    assert [sweep_after(herd, 600_000).held for _ in range(8)] == 2 * [True, True, True, False]


def test_a_grace_from_before_the_clock_was_put_back_holds_nobody_up(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.fall_silent("a")
    assert run_call(herd.redis, sweep_tenant(herd.ledger)) == Swept(held=True)
    for name in ("last", "hold"):
        herd.redis.hincrby(SWEEP, name, 3_600_000)
    assert run_call(herd.redis, sweep_tenant(herd.ledger)) == Swept(("a",))


def test_a_lease_from_before_the_clock_was_put_back_does_not_keep_a_dead_workers_job(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    lose_message(herd)
    lease = int(herd.field("a", "lease")) + 3_600_000
    herd.redis.hset(herd.ledger.job_key("a"), "lease", lease)
    herd.redis.zadd("herd:default:leases", {"a": lease})
    assert sweep(herd) == Swept()
    assert isinstance(herd.claim("a", "one"), Adopt)
    assert herd.redis.zscore("herd:default:leases", "a") == int(herd.field("a", "lease"))
    assert 0 < int(herd.field("a", "lease")) - herd.redis.time()[0] * 1000 <= 61_000
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))


def test_what_is_over_leaves_the_indexes(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"), end("a", 2, 0))
    for index in ("pending", "leases"):
        herd.redis.zadd(f"herd:default:{index}", {"a": 1, "forgotten": 1})
    assert sweep(herd) == Swept()
    assert herd.redis.exists("herd:default:pending", "herd:default:leases") == 0


@pytest.mark.long
def test_all_jobs_of_a_dead_worker_are_at_the_head_of_a_long_queue_after_one_sweep(herd: Herd) -> None:
    """As many as a worker has in hand at most, before as many as wait."""
    orphans = [f"orphan-{number}" for number in range(1_024 + 8)]
    for name in orphans:
        herd.submit(name)
    run_calls(herd.redis, [herd.ledger.claim(name, "one") for name in orphans])
    herd.redis.delete(QUEUE)
    for number in range(2_000):
        herd.submit(f"waiting-{number}")
    for name in orphans:
        herd.fall_silent(name)
    assert set(sweep(herd).jobs) == set(orphans)
    assert set(ids(herd)[: len(orphans)]) == set(orphans)
    assert ids(herd)[len(orphans)] == "waiting-0"
