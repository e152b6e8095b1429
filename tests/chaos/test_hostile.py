"""Messages that mean harm: none ends a worker, vanishes, holds up who comes behind it, or shows a prompt."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from time import monotonic

import pytest

from llama_herd.tasks.ledger.dead_letters import DeadLetters
from tests.chaos.harness.faults.messages import vanished
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.hostile import CANARY, HostileMessage, HostileMessages

#: So many at once that they take about a second.
BATCH = 50

#: A good job behind them has ended by then.
CANARY_S = 15.0


@pytest.mark.long
def test_the_same_seed_draws_the_same_messages() -> None:
    first, again, others = (list(islice(HostileMessages(seed), 300)) for seed in (0, 0, 1))
    assert first == again != others


@pytest.mark.long
def test_of_some_hundred_messages_each_kind_is_drawn_and_most_name_a_job() -> None:
    harms = list(islice(HostileMessages(0), 500))
    assert len({harm.kind for harm in harms}) == 18
    assert sum(harm.job_id is not None for harm in harms) > 300


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "num_messages"),
    [(0, 500), *(pytest.param(seed, 1250, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))],
)
def test_no_hostile_message_ends_a_worker_vanishes_or_holds_up_who_comes_behind_it(
    herd: Herd, figures: list[str], seed: int, num_messages: int
) -> None:
    (worker,) = herd.start_workers(1, step_s=0)
    known_ids = herd.jobs.submit(2, {"max_tokens": 300})  # they run while the first messages come
    lost, longest_s = list[HostileMessage](), 0.0
    for harms in batched(HostileMessages(seed, known_ids), num_messages):
        for harm in harms:
            herd.jobs.redis.lpush(herd.queue, harm.raw)
        longest_s = max(longest_s, seconds_until_a_good_job_has_run(herd, harms))
        lost += vanished(herd, harms)
        herd.jobs.redis.delete(DeadLetters().key("dead"))
    figures.append(f"{num_messages} hostile messages: a good job behind 50 is done within {longest_s:.1f} s")
    assert Counter(harm.kind for harm in lost) == Counter()
    assert worker.is_alive
    assert CANARY not in worker.log


def batched(harms: HostileMessages, num_messages: int) -> Iterator[list[HostileMessage]]:
    drawn = iter(harms)
    for _ in range(num_messages // BATCH):
        yield list(islice(drawn, BATCH))


def seconds_until_a_good_job_has_run(herd: Herd, harms: list[HostileMessage]) -> float:
    pushed_s = monotonic()
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 2})
    try:
        herd.jobs.client.result(job_id, timeout_s=CANARY_S)
    except TimeoutError as error:
        error.add_note(f"the worker does not go on after one of: {Counter(harm.kind for harm in harms)}")
        raise
    return monotonic() - pushed_s
