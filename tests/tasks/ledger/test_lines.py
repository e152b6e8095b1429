"""The lines: the waiting jobs of each list, and those with a deadline. No backlog hides a job in them."""

from collections.abc import Callable

import pytest

from llama_herd.tasks.ledger.answers import Emission, Swept, Yours
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.sweep import SWEEP_MAX_LOOKS, SWEEP_PATIENCE_MS
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import lane_of, lists_of
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, sweep

pytestmark = pytest.mark.redis

DEADLINES = "herd:default:pending:deadlines"
OTHER = "herd.other"

#: More jobs than a few sweeps look at.
BACKLOG = 3 * SWEEP_MAX_LOOKS


def wait_long(herd: Herd, num_jobs: int = BACKLOG) -> None:
    """A backlog of another model, all of it older than what a test submits."""
    calls = [
        herd.ledger.submit(f"old-{n}", JOB, Envelope.for_job(f"old-{n}", OTHER)) for n in range(num_jobs)
    ]
    run_calls(herd.redis, calls)
    for index in ("herd:default:pending", f"herd:default:pending:{OTHER}"):
        herd.redis.zadd(index, {f"old-{n}": 1 for n in range(num_jobs)})
    message = herd.redis.lindex(OTHER, -1)  # the next one: pushed as long ago
    tag_time = message.split(b":1:")[1].split(b'"')[0]
    herd.redis.lset(OTHER, -1, message.replace(tag_time, b"1"))


def delete_lines(herd: Herd) -> None:
    """As somebody may who is told that one of them is spoilt."""
    herd.redis.delete(*herd.redis.keys("herd:default:pending:*"))


def reason(herd: Herd, job_id: str) -> str | None:
    events = herd.events(job_id)
    return events[-1].finish_reason if events and isinstance(events[-1], End) else None


@pytest.mark.long
def test_a_lost_message_is_found_by_the_next_sweep_whatever_else_waits(herd: Herd) -> None:
    wait_long(herd)
    herd.submit("lost")
    herd.redis.delete(QUEUE)
    herd.pass_time("lost", 3_000)
    assert sweep(herd) == Swept(("lost",))


@pytest.mark.long
def test_a_deadline_is_noticed_by_the_next_sweep_whatever_else_waits(herd: Herd) -> None:
    wait_long(herd)
    herd.submit("late", JOB.model_copy(update={"deadline_ms": 1}))
    herd.submit("later", JOB.model_copy(update={"deadline_ms": 2**52}))
    sweep(herd)
    assert (reason(herd, "late"), reason(herd, "later")) == ("deadline", None)
    assert herd.redis.zrange(DEADLINES, 0, -1) == [b"later"]


def test_the_deadline_of_a_dead_workers_job_is_noticed_while_it_waits_for_a_claim(herd: Herd) -> None:
    """Its message was pushed in vain, so its next look is minutes away."""
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim("a")
    assert not herd.redis.exists(DEADLINES)
    herd.fall_silent("a")
    assert sweep(herd) == Swept(("a",))
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    herd.redis.zadd(DEADLINES, {"a": 1}, xx=True)
    herd.redis.zadd("herd:default:leases", {"a": 2**42})
    sweep(herd)
    assert reason(herd, "a") == "deadline"


@pytest.mark.parametrize("are_leases_lost", [False, True])
def test_a_live_owner_ends_its_job_itself(herd: Herd, are_leases_lost: bool) -> None:
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim("a")
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    if are_leases_lost:
        herd.redis.delete("herd:default:leases")
    herd.redis.zadd(DEADLINES, {"a": 1})
    sweep(herd)
    assert reason(herd, "a") is None
    assert not herd.redis.exists(DEADLINES)


def test_a_job_leaves_both_when_it_is_claimed_and_comes_back_when_it_is_released(herd: Herd) -> None:
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 2**52}))
    line = herd.line_of("a")
    claimed = herd.claimed("a")
    assert not herd.redis.exists(line, DEADLINES)
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch))
    assert herd.redis.zscore(DEADLINES, "a") == 2**52
    assert herd.redis.zscore(line, "a") == herd.redis.zscore("herd:default:pending", "a")
    run_call(herd.redis, herd.ledger.cancel("a"))
    assert not herd.redis.exists(line, DEADLINES, "herd:default:pending")


def be_lost(herd: Herd) -> None:
    herd.pass_time("a", SWEEP_PATIENCE_MS)


def lose_its_worker(herd: Herd) -> None:
    herd.claim("a")
    herd.fall_silent("a")


def be_released(herd: Herd) -> None:
    claimed = herd.claimed("a")
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch, push=True))


def fail_and_be_due(herd: Herd) -> None:
    claimed = herd.claimed("a")
    assert herd.put_back("a", "one", claimed.epoch).kind is Emission.OK
    herd.redis.zadd("herd:default:delayed", {"a": 1})


@pytest.mark.parametrize("priority", [-1, 0, 1])
@pytest.mark.parametrize("leave", [be_lost, lose_its_worker, be_released, fail_and_be_due])
def test_a_message_comes_back_into_the_list_of_its_priority_and_the_job_into_its_line(
    herd: Herd, leave: Callable[[Herd], None], priority: int
) -> None:
    herd.submit("a", JOB.model_copy(update={"priority": priority}))
    own = QUEUE + lane_of(priority)
    assert herd.redis.rpop(own) is not None
    leave(herd)
    sweep(herd)
    assert {name: herd.redis.llen(name) for name in lists_of(QUEUE) if herd.redis.exists(name)} == {own: 1}
    lines = [f"herd:default:pending:{name}" for name in lists_of(QUEUE)]
    waits_in = [line for line in lines if herd.redis.exists(line)]
    assert waits_in == [f"herd:default:pending:{own}"] * (leave is not lose_its_worker)


@pytest.mark.long
def test_jobs_whose_lines_were_deleted_are_taken_into_them_again_in_steps(herd: Herd) -> None:
    wait_long(herd)
    herd.submit("lost")
    herd.submit("late", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.redis.delete(QUEUE)
    for name in ("lost", "late"):
        herd.pass_time(name, 3_000)
    delete_lines(herd)
    herd.redis.zadd("herd:default:pending", {"late": 2}, xx=True)
    found = [job_id for _ in range(BACKLOG // SWEEP_MAX_LOOKS + 2) for job_id in sweep(herd).jobs]
    assert sorted(found) == ["late", "lost"]
    assert herd.redis.zcard(f"herd:default:pending:{OTHER}") == BACKLOG
    assert herd.redis.zrange(DEADLINES, 0, -1) == [b"late"]


def test_a_delayed_job_joins_its_line_when_it_is_due(herd: Herd) -> None:
    seconds, _ = herd.redis.time()
    herd.submit("a", JOB.model_copy(update={"not_before": 1000 * seconds + 60_000}))
    assert not herd.redis.exists(herd.line_of("a"))
    for index in ("pending", "delayed"):
        herd.redis.zadd(f"herd:default:{index}", {"a": 1})
    sweep(herd)
    assert herd.redis.zcard(herd.line_of("a")) == 1
    assert herd.redis.llen(QUEUE) == 1


def test_a_claimed_job_leaves_its_line_and_is_not_pushed(herd: Herd) -> None:
    herd.submit("a")
    line, since = herd.line_of("a"), herd.redis.zscore(herd.line_of("a"), "a")
    herd.redis.rpop(QUEUE)
    assert isinstance(herd.claim("a"), Yours)
    herd.redis.zadd(line, {"a": since - 3_000})
    herd.submit("b")
    assert sweep(herd) == Swept()
    assert herd.redis.zrange(line, 0, -1) == [b"b"]


def test_lines_without_waiting_jobs_are_dropped(herd: Herd) -> None:
    herd.submit("a")
    line = herd.line_of("a")
    herd.claim("a")
    herd.redis.zadd(line, {"forgotten": 2**42})
    sweep(herd)
    assert not herd.redis.exists(line, "herd:default:waiting")


def test_a_line_of_another_type_holds_up_no_other(herd: Herd) -> None:
    wait_long(herd, 1)
    herd.submit("lost")
    herd.redis.delete(QUEUE)
    herd.pass_time("lost", 3_000)
    herd.redis.delete(f"herd:default:pending:{OTHER}")
    herd.redis.set(f"herd:default:pending:{OTHER}", "no line")
    assert sweep(herd) == Swept(("lost",))


def test_a_sweep_after_many_others_has_no_state_but_its_turn(herd: Herd) -> None:
    herd.submit("a")
    sweep(herd)
    herd.claim("a", "one")
    sweep(herd)
    assert set(herd.redis.hkeys(SWEEP)) == {b"last", b"hold", b"gaps", b"offset", b"awake"}
