"""Where jobs wait by their priority, and in which order the lists are asked."""

from collections import Counter
from random import Random

import pytest
from kombu import Connection

from llama_herd.tasks.ledger.answers import Swept
from llama_herd.tasks.ledger.overview import Overview
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.priority import (
    LANES,
    LOW,
    NORMAL,
    TURN,
    URGENT,
    lane_of,
    lanes_in_turn,
    lists_of,
)
from tests.tasks.herd import QUEUE, Herd, age_messages, sweep

pytestmark = pytest.mark.redis


def submit(herd: Herd, job_id: str, priority: int) -> None:
    herd.submit(job_id, GenerationJob(prompt="x", priority=priority))


def depths(herd: Herd) -> dict[str, int]:
    """Of the lists that hold something."""
    held = {lane: herd.redis.llen(QUEUE + lane) for lane in LANES}
    return {lane: num for lane, num in held.items() if num}


@pytest.mark.parametrize(
    ("priority", "lane"), [(-10, LOW), (-1, LOW), (0, NORMAL), (1, URGENT), (10, URGENT)]
)
def test_a_job_waits_in_the_list_of_its_priority(herd: Herd, priority: int, lane: str) -> None:
    submit(herd, "a", priority)
    assert depths(herd) == {lane: 1}
    assert run_call(herd.redis, herd.ledger.queue_depth(QUEUE)) == 1


def test_a_job_that_is_pushed_again_waits_in_the_same_list(herd: Herd) -> None:
    submit(herd, "a", 3)
    herd.redis.delete(QUEUE + URGENT)
    claimed = herd.claimed("a", "one")
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch, push=True))
    assert depths(herd) == {URGENT: 1}


def test_all_lists_count_as_one_queue(herd: Herd) -> None:
    for number, priority in enumerate((-3, 0, 0, 7)):
        submit(herd, f"job-{number}", priority)
    assert run_call(herd.redis, herd.ledger.queue_depth(QUEUE)) == 4
    assert herd.redis.hget(herd.ledger.key("waiting"), f"{QUEUE}:jobs") == b"4"


@pytest.mark.parametrize("num_steps", range(1, 11))
def test_whatever_steps_of_priority_a_producer_has_its_messages_are_read_in_its_order(
    herd: Herd, redis_url: str, num_steps: int
) -> None:
    """And they count, for whoever submits and for whoever scales."""
    for seed in range(3):
        steps = sorted(Random(seed).sample(range(10), num_steps)) if seed else list(range(num_steps))
        herd.redis.delete(*lists_of(QUEUE))
        with Connection(redis_url, transport_options={"priority_steps": steps}) as connection:
            channel = connection.channel()
            for priority in range(10):
                message = {"properties": {"priority": priority, "delivery_tag": str(priority)}}
                channel._put(QUEUE, message)
            lists = [channel._q_for_pri(QUEUE, step) for step in steps]
        assert [list for list in map(QUEUE.__add__, LANES) if list in lists] == lists
        assert sum(depths(herd).values()) == 10
        assert run_call(herd.redis, herd.ledger.queue_depth(QUEUE)) == 10
        (counts,) = run_call(herd.redis, Overview().counts(QUEUE)).queues
        assert counts.num_messages == 10


def test_seven_of_eight_messages_are_the_most_urgent() -> None:
    orders = [lanes_in_turn(number) for number in range(10 * TURN)]
    assert sum(order == LANES for order in orders) == 10 * (TURN - 1)
    assert {frozenset(order) for order in orders} == {frozenset(LANES)}


@pytest.mark.parametrize("seed", range(20))
def test_no_list_starves_however_full_the_others_are(seed: int) -> None:
    """Each list that holds something gives one of any so many messages, from wherever they are counted."""
    rng = Random(seed)
    full = rng.sample(LANES, rng.randint(2, len(LANES)))
    num_before, num = rng.randrange(1000), TURN * (len(LANES) - 1)
    taken = Counter(
        next(lane for lane in lanes_in_turn(number) if lane in full)
        for number in range(num_before, num_before + num)
    )
    assert taken.keys() == set(full)


def test_of_two_full_lists_the_other_gives_each_eighth_message() -> None:
    taken = Counter(
        next(lane for lane in lanes_in_turn(n) if lane in (URGENT, NORMAL)) for n in range(10 * TURN)
    )
    assert taken == {URGENT: 10 * (TURN - 1), NORMAL: 10}


def test_every_priority_has_one_of_the_lists() -> None:
    assert {lane_of(priority) for priority in range(-10, 11)} == {URGENT, NORMAL, LOW}


def test_each_list_has_its_own_front(herd: Herd) -> None:
    """What waits while the more urgent are served is not lost, and what is lost is found in any list."""
    submit(herd, "patient", -1)
    submit(herd, "lost", -1)
    for job_id in ("patient", "lost"):
        herd.pass_time(job_id, 3_600_000)
    age_messages(herd, 3_600_000, QUEUE + LOW)
    herd.redis.lpop(QUEUE + LOW)  # the younger of the two
    for priority in (0, 1):
        submit(herd, f"job-{priority}", priority)
    assert sweep(herd) == Swept()
    herd.redis.delete(QUEUE + LOW)
    assert sweep(herd) == Swept()  # its messages may be on their way to a claim
    assert sorted(sweep(herd).jobs) == ["lost", "patient"]
    assert depths(herd) == {URGENT: 1, NORMAL: 1, LOW: 2}


def test_a_record_can_lead_to_no_other_tenants_queue_by_its_list(herd: Herd) -> None:
    submit(herd, "a", 0)
    herd.redis.delete(QUEUE)
    herd.redis.hset(herd.ledger.job_key("a"), mapping={"queue": "herd.", "lane": "acme:tales"})
    herd.pass_time("a", 60_000)
    assert sweep(herd) == Swept()
    assert not herd.redis.exists("herd.acme:tales")
