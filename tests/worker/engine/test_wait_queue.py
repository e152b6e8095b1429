"""The line by itself: priorities, their rise, and fair shares, as properties of random traffic."""

from collections import Counter
from itertools import cycle

import pytest
from hypothesis import strategies as st

from llama_herd.tasks.protocol.priority import MAX_PRIORITY, MIN_PRIORITY
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.wait_queue import RISE_TOKENS, WaitQueue
from tests.examples import for_any

MAX_JOB_TOKENS = 4000
TENANTS = "abc"

priorities = st.integers(MIN_PRIORITY, MAX_PRIORITY)
tenants = st.sampled_from(TENANTS)
sizes = st.integers(400, MAX_JOB_TOKENS)


def sequence(job_id: str, tenant: str = "a", priority: int = 0, num_tokens: int = 100) -> Sequence:
    return Sequence(
        job_id=job_id,
        prompt_ids=[1],
        params=SamplingParams(max_tokens=num_tokens - 1),
        seed=0,
        max_length=RISE_TOKENS,
        eos_ids=frozenset(),
        detokenizer=Detokenizer([b""]),
        tenant=tenant,
        priority=priority,
    )


def admit_first(line: WaitQueue) -> Sequence:
    place = next(line.in_order())
    line.admit(place)
    return place.sequence


def order(line: WaitQueue) -> list[str]:
    """The ids in the order of admission, which empties the line."""
    return [admit_first(line).job_id for _ in range(len(line))]


def test_the_higher_priority_goes_first_and_equal_ones_as_they_came() -> None:
    line = WaitQueue()
    for job_id, priority in (("low", -3), ("first", 2), ("high", 10), ("second", 2)):
        line.join(sequence(job_id, priority=priority))
    assert order(line) == ["high", "first", "second", "low"]


def test_those_who_wait_rise_when_enough_has_gone_ahead_of_them() -> None:
    line = WaitQueue()
    line.join(sequence("low", priority=0))
    for number in range(3):
        line.join(sequence(f"high-{number}", priority=1, num_tokens=RISE_TOKENS // 2))
    assert order(line) == ["high-0", "high-1", "low", "high-2"]


def test_who_has_lost_its_place_waits_a_level_higher_each_time_and_before_later_ones() -> None:
    line = WaitQueue()
    line.join(low := sequence("low"))
    for num_preemptions in range(1, 4):
        assert admit_first(line) is low
        low.num_preemptions = num_preemptions
        line.join(sequence(f"above {num_preemptions}", priority=num_preemptions + 1))
        line.join(sequence(f"level {num_preemptions}", priority=num_preemptions))
        line.join(low)
        assert admit_first(line).job_id == f"above {num_preemptions}"
    assert order(line) == ["low", "level 3", "level 2", "level 1"]


def test_text_that_is_resumed_is_not_charged_again() -> None:
    line = WaitQueue()
    line.join(resumed := sequence("resumed", priority=2, num_tokens=RISE_TOKENS))
    admit_first(line)
    resumed.ids += [1] * (RISE_TOKENS - 10)
    resumed.num_preemptions = 1
    for one in (sequence("low"), resumed):
        line.join(one)
    assert admit_first(line) is resumed
    line.join(sequence("higher", priority=1))
    assert order(line) == ["higher", "low"], "it was passed by ten tokens, and does not rise for these"


@pytest.mark.long
@for_any(
    tenants,
    priorities,
    st.lists(st.tuples(tenants, priorities, sizes), max_size=5),
    st.lists(st.tuples(tenants, priorities, sizes), min_size=1, max_size=8),
)
def test_nobody_starves_under_an_endless_stream(
    tenant: str, priority: int, older: list[tuple[str, int, int]], stream: list[tuple[str, int, int]]
) -> None:
    line = WaitQueue()
    for size in older:
        line.join(sequence("older", *size))
    victim = sequence("victim", tenant, priority)
    line.join(victim)
    num_rises, num_others = MAX_PRIORITY - priority, len(TENANTS) - 1
    num_own = sum(num_tokens for name, _, num_tokens in older if name == tenant)
    bound = num_rises * (RISE_TOKENS + MAX_JOB_TOKENS)  # from higher priorities, while it rises
    bound += num_own + num_others * (
        num_own + 2 * MAX_JOB_TOKENS * (num_rises + 1)
    )  # from its own, in fair shares
    num_tokens = 0
    for number, size in enumerate(cycle(stream)):
        line.join(sequence(f"later-{number}", *size))
        line.join(sequence(f"urgent-{number}", size[0], MAX_PRIORITY, size[2]))
        admitted = admit_first(line)
        if admitted is victim:
            break
        num_tokens += admitted.num_reserved
        assert num_tokens <= bound


@pytest.mark.long
@for_any(st.lists(st.tuples(tenants, sizes), min_size=20, max_size=40))
def test_tenants_that_wait_side_by_side_get_equal_shares(jobs: list[tuple[str, int]]) -> None:
    line = WaitQueue()
    for number, (tenant, num_tokens) in enumerate(jobs):
        line.join(sequence(f"job-{number}", tenant, num_tokens=num_tokens))
    served: Counter[str] = Counter()
    while len(waiting := {one.tenant for one in line}) > 1:
        admitted = admit_first(line)
        served[admitted.tenant] += admitted.num_reserved
        shares = [served[tenant] for tenant in waiting]
        assert max(shares) - min(shares) <= MAX_JOB_TOKENS


def test_a_tenant_that_floods_the_line_does_not_keep_another_waiting() -> None:
    line = WaitQueue()
    for number in range(50):
        line.join(sequence(f"flood-{number}", "a"))
    for _ in range(20):
        admit_first(line)
    line.join(sequence("one", "b"))
    line.join(sequence("two", "b"))
    assert {"one", "two"} <= set(order(line)[:4])


def test_shares_count_tokens_and_outlast_an_empty_line_of_ones_own() -> None:
    line = WaitQueue()
    for number in range(40):
        line.join(sequence(f"small-{number}", "a", num_tokens=100))
    for number in range(4):
        line.join(sequence(f"large-{number}", "b", num_tokens=1000))
        while admit_first(line).tenant != "b":
            pass
    assert len(line) < 15


def test_who_stays_away_saves_nothing_up() -> None:
    line = WaitQueue()
    line.join(sequence("early", "b"))
    admit_first(line)
    for number in range(30):
        line.join(sequence(f"a-{number}", "a"))
        line.join(sequence(f"c-{number}", "c"))
    for _ in range(40):
        admit_first(line)
    for number in range(10):
        line.join(sequence(f"b-{number}", "b"))
    tenants_served = Counter(admit_first(line).tenant for _ in range(9))
    assert tenants_served == {"a": 3, "b": 3, "c": 3}


@for_any(st.lists(st.tuples(tenants, priorities, sizes), max_size=30), st.data())
def test_the_line_holds_who_has_joined_and_not_left_in_any_traffic(
    jobs: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    line = WaitQueue()
    waiting: list[Sequence] = []
    for number, size in enumerate(jobs):
        line.join(one := sequence(f"job-{number}", *size))
        waiting.append(one)
        match data.draw(st.sampled_from(("stay", "admit", "leave"))):
            case "admit":
                waiting.remove(admit_first(line))
            case "leave":
                line.leave(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        assert list(line) == waiting
        assert len(line) == len(waiting)
        places = list(line.in_order())
        assert Counter(place.sequence for place in places) == Counter(waiting)
        ranks = [place.priority for place in places]
        assert ranks == sorted(ranks, reverse=True)
        assert all(place.priority >= place.sequence.priority for place in places)
        for tenant in TENANTS:
            own = [(-place.priority, place.number) for place in places if place.sequence.tenant == tenant]
            assert own == sorted(own)
