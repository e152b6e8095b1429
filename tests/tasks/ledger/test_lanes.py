"""What waits is told by model and lane, whoever has sent it, and for whomever."""

import pytest
from redis import Redis

from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.lanes import MAX_QUEUES, Lane, TenantLoad, load_of
from llama_herd.tasks.ledger.redis_call import run
from llama_herd.tasks.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd, age_messages

pytestmark = pytest.mark.redis


def load(herd: Herd) -> TenantLoad:
    return run(herd.redis, load_of("default", QUEUE))


def lanes(herd: Herd, model: str = "tales") -> dict[str, Lane]:
    (waiting,) = (one for one in load(herd).waiting if one.model == model)
    return {lane.name: lane for lane in waiting.lanes}


def submit(herd: Herd, job_id: str, queue: str = QUEUE, **fields: int) -> None:
    job = JOB.model_copy(update=fields)
    run(herd.redis, herd.ledger.submit(job_id, job, Envelope.of(job_id, queue)))


def test_a_job_waits_in_its_lane_until_it_is_claimed(herd: Herd) -> None:
    for job_id, priority in (("a", 0), ("b", 5), ("c", -5), ("d", -5)):
        submit(herd, job_id, priority=priority)
    assert {name: lane.num_messages for name, lane in lanes(herd).items()} == {
        "normal": 1,
        "urgent": 1,
        "low": 2,
    }
    (waiting,) = load(herd).waiting
    assert waiting.num_tokens == 4 * JOB.estimated_tokens
    herd.redis.rpop(QUEUE)
    herd.claimed("a")
    assert lanes(herd)["normal"].num_messages == 0


def test_the_age_of_a_lane_is_that_of_the_message_that_is_taken_next(herd: Herd) -> None:
    submit(herd, "old")
    age_messages(herd, 90_000)
    submit(herd, "young")
    assert lanes(herd)["normal"].oldest_s == pytest.approx(90, abs=10)
    assert lanes(herd)["urgent"].oldest_s == 0


def test_a_model_that_nobody_serves_and_a_bare_message_are_told_too(herd: Herd) -> None:
    submit(herd, "a", "herd.nobodys")
    herd.redis.lpush(QUEUE, "{}")
    assert [one.model for one in load(herd).waiting] == ["tales", "nobodys"]
    assert lanes(herd)["normal"].num_messages == 1
    assert lanes(herd, "nobodys")["normal"].num_messages == 1


def test_a_job_that_is_not_due_is_counted_apart(herd: Herd) -> None:
    submit(herd, "a", not_before=2**45)
    (waiting,) = load(herd).waiting
    assert waiting.num_delayed == 1
    assert waiting.lanes[0].num_messages == 0


def test_of_many_queues_the_fullest_are_told(herd: Herd) -> None:
    for number in range(MAX_QUEUES + 8):
        submit(herd, f"{number}", f"herd.m{number}")
    submit(herd, "more", f"herd.m{MAX_QUEUES + 7}")
    models = [one.model for one in load(herd).waiting]
    assert models[:2] == ["tales", f"m{MAX_QUEUES + 7}"]
    assert len(models) == MAX_QUEUES


@pytest.mark.parametrize("field", ["foreign.queue:jobs", "herd.other:tenant:jobs", "no colon", ":jobs"])
def test_a_field_that_names_no_queue_of_the_tenant_is_passed_over(herd: Herd, field: str) -> None:
    herd.redis.hset("herd:default:waiting", field, 1)
    assert [one.model for one in load(herd).waiting] == ["tales"]


def test_a_list_that_was_replaced_counts_as_empty(herd: Herd) -> None:
    herd.redis.set(QUEUE, "x")
    assert load(herd).num_messages == 0


def test_what_is_dead_is_counted(herd: Herd, redis: Redis) -> None:
    assert (load(herd).num_dead_letters, load(herd).num_poisoned) == (0, 0)
    run(redis, DeadLetters().bury(b"x", queue=QUEUE, reason="not JSON", worker="w"))
    redis.zadd("herd:default:quarantine", {"a": 1})
    assert (load(herd).num_dead_letters, load(herd).num_poisoned) == (1, 1)
