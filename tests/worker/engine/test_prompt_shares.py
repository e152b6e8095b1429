"""How the prompts of a step share its budget, and which of them wait."""

from itertools import cycle

import pytest
from hypothesis import strategies as st

from llama_herd.model.pages import Pages
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.worker.engine.prefill_budget import (
    LAST_STEPS,
    PATIENT_STEPS,
    SMALL_PART,
    LearntBudget,
    PrefillBudget,
)
from llama_herd.worker.engine.prompt_shares import MAX_SCORED_TOKENS
from llama_herd.worker.engine.scheduler import Scheduler
from tests.examples import for_any
from tests.worker.engine.test_scheduler import (
    BUDGET,
    MAX_ROWS,
    new_scheduler,
    num_prompt_tokens,
    scored,
    sequence,
    step,
)


def test_prompts_share_the_budget_and_decode_costs_none_of_it() -> None:
    scheduler = new_scheduler()
    scheduler.submit(sequence("decoding", 1, 5))
    scheduler.submit(sequence("first", 30, 5, token_id=2))
    scheduler.submit(sequence("second", 40, 5, token_id=3))
    scheduler.admit()
    assert [row.num_tokens for row in scheduler.next_batch()] == [1, 30, 20]
    step(scheduler)
    assert [row.num_tokens for row in scheduler.next_batch()] == [1, 1, 20]


def test_prompts_that_keep_no_stream_waiting_are_computed_in_large_steps() -> None:
    scheduler = new_scheduler(prefill_tokens=4)
    scheduler.submit(sequence("first", 100, 5))
    scheduler.submit(sequence("second", 40, 5, token_id=2))
    scheduler.admit()
    assert [row.num_tokens for row in scheduler.next_batch()] == [88, 40]
    step(scheduler)
    assert [row.num_tokens for row in scheduler.next_batch()] == [4, 1]


def test_a_short_prompt_does_not_wait_for_a_long_one_which_gets_half_of_each_step() -> None:
    scheduler = new_scheduler()
    scheduler.submit(sequence("decoding", 1, 40))
    scheduler.submit(sequence("long", 300, 5, token_id=2))
    scheduler.admit()
    steps = 0
    while not (steps and scheduler.running[1].num_uncached <= 1):
        if len(scheduler.running) < MAX_ROWS:
            scheduler.submit(sequence(f"short-{steps}", BUDGET // 2, 1, token_id=3 + steps))
            scheduler.admit()
        rows = {row.sequence.job_id: row.num_tokens for row in scheduler.next_batch()}
        assert rows["long"] >= min(BUDGET // 2, scheduler.running[1].num_uncached)
        assert rows[f"short-{steps}"] == BUDGET // 2, "it has its first token after one step"
        step(scheduler)
        steps += 1
    assert steps == 300 / (BUDGET // 2)


def batch_scheduler(num_rows: int = MAX_ROWS, most: int = 100 * BUDGET, prompt_s: float = 0.0) -> Scheduler:
    """One that has learnt that 4 prompt tokens, or rows, take as long as a step of one row.

    prompt_s: what a step with prompts costs beside.
    """
    prefill = LearntBudget(4, most)
    for _ in range(20):  # from 4 tokens up, at most twice as many each time
        prefill.note(0, 1, 4.0)
        prefill.note(num_tokens := prefill.beside(1, can_wait=True), 1, 4.0 + prompt_s + num_tokens)
    prefill.note(1, 1, 5.0 + prompt_s)  # a small lot, so that none is due
    assert prefill.beside(1) == 4
    prefixes = PrefixCache(Pages(num_rows * 4, consecutive=True))
    return Scheduler(prefixes, max_rows=num_rows, prefill=prefill)


def test_prompts_are_cut_less_beside_streams_that_can_all_wait() -> None:
    scheduler = batch_scheduler()
    scheduler.submit(sequence("decoding", 1, 40, priority=-1))
    scheduler.submit(sequence("prompt", 30, 5, token_id=2, priority=-10))
    scheduler.submit(sequence("long prompt", 100, 5, token_id=3, priority=-10))
    scheduler.admit()
    most = PATIENT_STEPS * (4 + 2)
    assert [row.num_tokens for row in scheduler.next_batch()] == [1, 30, most - 30]


@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.parametrize("num_before", range(MAX_ROWS))
def test_prompts_are_cut_while_one_that_cannot_wait_runs_or_waits(
    num_before: int, is_confirmed: bool
) -> None:
    scheduler = batch_scheduler()
    scheduler.submit(sequence("decoding", 1, 40, priority=-1))
    for n in range(num_before):
        scheduler.submit(sequence(f"prompt-{n}", 50, 5, token_id=n + 2, priority=-1))
    scheduler.admit()
    scheduler.submit(urgent := sequence("urgent", 1, 5, token_id=99))
    urgent.is_confirmed = is_confirmed
    assert urgent in scheduler.admit()
    num_prompts = min(num_before, MAX_ROWS - 2)  # one has left for it
    num_running = num_prompts + 1 + is_confirmed
    assert num_prompt_tokens(scheduler.next_batch()) == min(4 + num_running - 1, 50 * num_prompts)


def test_a_prompt_that_cannot_wait_goes_before_shorter_ones_that_can() -> None:
    scheduler = batch_scheduler(4)
    scheduler.submit(sequence("decoding", 1, 40, priority=-1))
    scheduler.submit(sequence("oldest", 100, 5, token_id=2, priority=-1))
    scheduler.submit(sequence("short", 20, 5, token_id=3, priority=-1))
    scheduler.admit()
    scheduler.submit(sequence("urgent", 60, 5, token_id=4))
    scheduler.admit()
    tokens = {row.sequence.job_id: row.num_tokens for row in scheduler.next_batch()}
    assert tokens == {"decoding": 1, "oldest": 4, "urgent": 60}


def test_of_prompts_that_are_scored_a_more_urgent_one_goes_first() -> None:
    prefixes = PrefixCache(Pages(100, consecutive=True))
    scheduler = Scheduler(prefixes, max_rows=2, prefill=PrefillBudget(4 * MAX_SCORED_TOKENS))
    low, urgent = scored("low", 3 * MAX_SCORED_TOKENS), scored("urgent", 2 * MAX_SCORED_TOKENS)
    urgent.priority = 1
    for one in (low, urgent):
        scheduler.submit(one)
        scheduler.admit()
    assert [row.sequence.job_id for row in scheduler.next_batch()] == ["urgent"]


def test_a_prompt_that_cannot_wait_is_whole_beside_prompts_that_can() -> None:
    scheduler = batch_scheduler(4)
    scheduler.submit(sequence("oldest", 190, 5, token_id=2, priority=-1))
    scheduler.admit()
    scheduler.submit(sequence("urgent", 100, 5, token_id=4))
    scheduler.admit()
    tokens = {row.sequence.job_id: row.num_tokens for row in scheduler.next_batch()}
    assert tokens == {"oldest": 3, "urgent": 100}


def test_long_prompts_that_cannot_wait_take_no_more_than_a_step_may_have() -> None:
    """The oldest one of a batch stands still meanwhile."""
    scheduler = batch_scheduler(4, most=128)
    scheduler.submit(sequence("decoding", 1, 40, priority=-1))
    scheduler.submit(sequence("oldest", 100, 5, token_id=2, priority=-1))
    scheduler.admit()
    scheduler.submit(sequence("long", 180, 5, token_id=3))
    scheduler.submit(sequence("urgent", 20, 5, token_id=4))
    scheduler.admit()
    rows = scheduler.next_batch()
    assert {row.sequence.job_id: row.num_tokens for row in rows} == {
        "decoding": 1,
        "long": 128 - 20,
        "urgent": 20,
    }
    step(scheduler)
    assert num_prompt_tokens(scheduler.next_batch()) <= scheduler.prefill.beside(4), "now one streams"


@for_any(
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60)), min_size=1, max_size=9),
    st.integers(0, 30),
    st.integers(1, 110),
)
def test_beside_a_batch_a_first_token_comes_within_two_steps_and_its_own_prefill(
    batch: list[tuple[int, int]], num_before: int, num_prompt: int
) -> None:
    """One step runs when the job comes, one while its start is recorded; the next one has all its prompt."""
    num_rows, coming = 6, enumerate(cycle(batch))
    scheduler = batch_scheduler(num_rows)

    def take_step(most: int) -> None:
        while len(scheduler.running) + len(scheduler.waiting) < num_rows - 1:
            n, (num_prompt, max_tokens) = next(coming)
            scheduler.submit(sequence(f"row-{n}", num_prompt, max_tokens, token_id=n + 2, priority=-10))
        scheduler.admit()
        streams = any(one.is_confirmed and one.num_uncached == 1 for one in scheduler.running)
        assert not streams or num_prompt_tokens(scheduler.next_batch()) <= most
        step(scheduler)

    usual = scheduler.prefill.beside(num_rows)
    for _ in range(num_before + 1):
        take_step(PATIENT_STEPS * usual)
    scheduler.submit(chat := sequence("chat", num_prompt, 1))
    chat.is_confirmed = False
    take_step(usual)
    chat.is_confirmed = True
    take_step(num_prompt + usual)
    assert chat.ids


def waiting_scheduler(priority: int) -> Scheduler:
    """One with a stream and room for more, where any prompt costs most of a step of one row."""
    scheduler = batch_scheduler(8, prompt_s=3.0)
    scheduler.submit(sequence("decoding", 1, 90, priority=-1))
    scheduler.submit(sequence("prompt", 20, 5, token_id=2, priority=priority))
    scheduler.admit()
    return scheduler


def test_prompts_that_can_wait_do_so_until_their_rows_have_lost_what_a_step_with_prompts_costs() -> None:
    scheduler = waiting_scheduler(-1)
    num_waited = 0
    while not num_prompt_tokens(scheduler.next_batch()):
        num_waited += 1
    assert num_waited == 1, "half of the rows have been idle for a step"
    scheduler = waiting_scheduler(-1)
    assert not num_prompt_tokens(scheduler.next_batch())
    scheduler.submit(sequence("another", 20, 5, token_id=3, priority=-1))
    scheduler.admit()
    assert num_prompt_tokens(scheduler.next_batch()) == 40, "together, and sooner"


def test_no_prompt_waits_where_one_cannot_or_where_nothing_decodes() -> None:
    assert num_prompt_tokens(waiting_scheduler(0).next_batch()) == 20
    scheduler = waiting_scheduler(-1)
    scheduler.submit(sequence("urgent", 20, 5, token_id=4))
    assert num_prompt_tokens(scheduler.next_batch())
    scheduler = waiting_scheduler(-1)
    scheduler.remove(scheduler.running[0])
    assert num_prompt_tokens(scheduler.next_batch()) == 20


def test_a_small_lot_that_is_due_waits_for_the_next_prompt() -> None:
    scheduler = batch_scheduler()
    for _ in range(LAST_STEPS + 2):
        scheduler.prefill.note(4, 1, 8.0)
    scheduler.submit(sequence("decoding", 1, 40))
    scheduler.admit()
    for _ in range(3):
        step(scheduler)
    scheduler.submit(sequence("prompt", 30, 5, token_id=2))
    scheduler.admit()
    small, usual = (scheduler.next_batch()[1].num_tokens for _ in range(2))
    assert small == usual // SMALL_PART
