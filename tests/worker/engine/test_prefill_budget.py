"""The budget of prompt tokens follows what steps take, here by made-up devices and a clock that they move."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import Phase, given, settings, strategies as st

from benchmarks.simulated_card import Costs, SimulatedEngine, SimulatedRunner
from llama_herd.worker.engine.prefill_budget import (
    ALONE_FACTOR,
    PATIENT_STEPS,
    SMALL_PART,
    ForwardCosts,
    LearntBudget,
    MeasuredBudget,
    PrefillBudget,
)

ROWS = 8
DECODE_S = 0.1


def by_token(token_s: float, *, free: int = 0, prompt_s: float = 0.0) -> Callable[[int], float]:
    """What prompts cost beside the rows: some tokens nothing, and each a constant."""
    return lambda tokens: prompt_s + token_s * max(0, tokens - free)


def taught(
    budget: PrefillBudget, cost_s: Callable[[int], float], *, can_wait: bool = False, steps: int = 80
) -> int:
    """Take steps, one with prompts after one without, and return the usual budget after them."""
    lots = []
    for _ in range(steps):
        budget.note(0, ROWS, DECODE_S)
        lots.append(tokens := budget.beside(ROWS, can_wait=can_wait))
        budget.note(tokens, ROWS, DECODE_S + cost_s(tokens))
    return max(lots[-20:])


def learnt() -> PrefillBudget:
    return PrefillBudget.from_setting(0, "cpu")


def test_a_fixed_one_stays() -> None:
    budget = PrefillBudget.from_setting(24, "cpu")
    for can_wait in (False, True):
        assert taught(budget, by_token(0.0001), can_wait=can_wait) == 24
        assert budget.beside(ROWS, can_wait=can_wait) == 24


def test_prompts_take_as_long_as_a_step_without() -> None:
    assert taught(learnt(), by_token(0.001)) == pytest.approx(100, abs=1)


def test_tokens_that_cost_nothing_beside_the_rows_are_taken_too() -> None:
    assert taught(learnt(), by_token(0.001, free=50)) == pytest.approx(150, abs=2)


@pytest.mark.parametrize("prompt_s", [0.05, 0.1, 0.3])
def test_what_any_prompt_costs_is_not_charged_to_its_tokens(prompt_s: float) -> None:
    usual = taught(learnt(), by_token(0.001, prompt_s=prompt_s))
    assert usual == pytest.approx(max(DECODE_S, prompt_s) / 0.001, rel=0.01)


def test_beside_streams_that_can_wait_prompts_take_as_long_as_several_steps() -> None:
    assert taught(learnt(), by_token(0.002), can_wait=True) == pytest.approx(PATIENT_STEPS * 50, abs=8)


def test_it_stays_within_its_bounds() -> None:
    assert taught(learnt(), by_token(1.0)) == 16
    assert taught(learnt(), by_token(0.0)) == 16 * ALONE_FACTOR


def test_it_at_most_doubles_in_a_step() -> None:
    budget = learnt()
    budget.note(0, ROWS, DECODE_S)
    budget.note(16, ROWS, DECODE_S)
    assert budget.beside(ROWS) == 32 // SMALL_PART
    budget.note(8, ROWS, DECODE_S)
    assert budget.beside(ROWS) == 32


@pytest.mark.parametrize("least", [1, 2, 3, 16])
def test_a_small_lot_is_offered_once_whatever_comes_of_it(least: int) -> None:
    """A lot of single tokens counts as rows that decode."""
    budget = LearntBudget(least, 32 * least)
    budget.note(0, ROWS, DECODE_S)
    budget.note(least, ROWS, DECODE_S)
    small = budget.beside(ROWS)
    budget.note(0, ROWS + small, DECODE_S)
    assert 0 < small < budget.beside(ROWS)


def test_it_comes_down_when_tokens_cost_more() -> None:
    budget = learnt()
    taught(budget, by_token(0.001))
    assert taught(budget, by_token(0.004), steps=300) == pytest.approx(25, abs=3)


def test_one_step_that_was_held_up_changes_nothing() -> None:
    budget = learnt()
    assert taught(budget, by_token(0.001)) == pytest.approx(100, abs=1)
    for tokens in (100, 25, 0):
        budget.note(tokens, ROWS, 60.0)
    assert taught(budget, by_token(0.001), steps=1) in (pytest.approx(25, abs=1), pytest.approx(100, abs=1))


@pytest.mark.parametrize(("rows_before", "num_decoding"), [(1, 31), (1, 6), (12, 6), (32, 20)])
def test_where_prompts_always_wait_it_is_right_by_a_step_of_other_rows(
    rows_before: int, num_decoding: int
) -> None:
    """Of 32 that run some decode; each token of a step takes 1 ms, and reading the weights 20."""
    budget, lots = learnt(), []
    budget.note(0, rows_before, 0.020 + 0.001 * rows_before)
    for _ in range(80):
        lots.append(tokens := budget.beside(32))
        budget.note(tokens, num_decoding, 0.020 + 0.001 * (num_decoding + tokens))
    assert max(lots[-20:]) == pytest.approx(20 + 32, abs=1)


def test_steps_without_streams_teach_nothing() -> None:
    budget = learnt()
    budget.note(512, 0, 9.0)
    assert budget.beside(ROWS) == 16


def test_alone_prompts_take_many_tokens() -> None:
    assert PrefillBudget.from_setting(0, "cpu").alone == 16 * ALONE_FACTOR
    assert PrefillBudget.from_setting(3, "cuda").alone == 3 * ALONE_FACTOR


def measured(*, prompt_s: float = 0.0) -> PrefillBudget:
    """Of a device that takes 10 ms to read its weights, 1 ms a row and 0.1 ms a prompt token."""
    forwards = ForwardCosts(0.011, {size: prompt_s + 0.0001 * size for size in (64, 128, 256, 512)})
    return MeasuredBudget(16, 4096, forwards)


def test_full_forwards_take_no_longer_than_a_step_without() -> None:
    budget = measured()
    assert budget.beside(30) == 16, "no step is known"
    budget.note(0, 30, 0.040)
    assert [budget.beside(num) for num in (1, 2, 20, 30, 60)] == [64, 128, 256, 256, 512]
    assert budget.beside(30, can_wait=True) == 6 * 512, "8 steps are 320 ms, a full forward takes 51.2"


def test_a_step_with_prompts_tells_what_one_without_takes() -> None:
    budget = measured(prompt_s=0.002)
    for num_tokens, room in ((200, 256), (512, 512), (600, 640)):
        budget.note(num_tokens, 30, 0.040 + 0.002 * -(-room // 512) + 0.0001 * room)
        assert budget.decode_s == pytest.approx(0.040)


def test_what_was_measured_of_rows_is_no_more_than_a_first_guess_of_a_step() -> None:
    """It may take longer than a real one."""
    budget = measured()
    budget.note(0, 4, 0.007)
    assert budget.beside(4) == 64


def test_prompts_wait_until_that_costs_their_constant() -> None:
    budget = measured(prompt_s=0.01)
    budget.note(0, 20, 0.030)
    constant_s = 0.01 - 0.01 * 64 / 512
    assert [budget.pays_to_wait(idle, 20) for idle in (5, 6)] == [True, False]
    assert 5 * 0.03 < 20 * constant_s < 6 * 0.03


#: Devices from a card that is ten times as fast as today's to a slow processor.
devices = st.builds(
    Costs,
    step_s=st.floats(1e-3, 0.2),
    row_s=st.floats(1e-6, 1e-3),
    cached_token_s=st.just(0.0),
    prompt_s=st.floats(0.0, 0.05),
    prompt_token_s=st.floats(5e-6, 5e-3),
)


def streamed(costs: Costs, noise: float, seed: int) -> tuple[list[float], list[int]]:
    """Gaps of streams beside which prompts always wait, and the prompt tokens of steps, once it is learnt."""
    random = Random(seed)
    runner = SimulatedRunner(costs, noise, random)
    prefill = PrefillBudget.from_setting(0, "cuda", costs.of_forwards)
    one = SimulatedEngine(runner, num_rows=2 * ROWS, most_tokens=4096, prefill=prefill)
    for number in range(ROWS):
        one.submit(f"stream-{number}", random.choices(range(99), k=20), 400)
    one.step(20)
    for number in range(300):
        if number == 200:
            one.drawn_s.clear()
            runner.prompt_tokens.clear()
        while len(one.engine.scheduler.waiting) < 30:
            prompt = random.choices(range(99), k=random.randint(20, 3000))
            one.submit(f"prompt-{number}-{random.random()}", prompt, 2)
        one.step(1)
    return one.gaps_s(), runner.prompt_tokens


def decode_s(costs: Costs, num_rows: int) -> float:
    return costs.step_s + costs.row_s * num_rows


def taken_for_tokens_s(costs: Costs) -> float:
    """How much longer a gap may be since rows are taken for tokens: all of them, where a token costs more.

    Where a row does, lots with some rows more than others make a token cheaper than it is.
    """
    return 2 * ROWS * costs.prompt_token_s + ROWS // 2 * costs.row_s


def paying_tokens(costs: Costs) -> float:
    """The prompt tokens that may take as long as they do, of those that wait in `streamed`."""
    forwards = costs.of_forwards
    if forwards is not None:  # some rows have just ended
        return max(256, min(2000, forwards.fitting(0.99 * decode_s(costs, 3 * ROWS // 2))))
    # Where prompts always wait, a row is taken to cost as much as a prompt token.
    known_s = min(decode_s(costs, ROWS), costs.step_s + ROWS * costs.prompt_token_s)
    return max(256, min(2000, max(known_s, costs.prompt_s) / costs.prompt_token_s))


@given(devices, st.integers(0, 9))
@settings(max_examples=10, phases=[Phase.generate], deadline=None)
def test_no_stream_waits_longer_than_a_step_and_the_constant_and_the_longer_of_both(
    costs: Costs, seed: int
) -> None:
    gaps_s, prompt_tokens = streamed(costs, 0.0, seed)
    full_s, token_s = decode_s(costs, 2 * ROWS), costs.prompt_token_s
    least_s = full_s + costs.prompt_s + 256 * token_s
    bound_s = full_s + costs.prompt_s + max(full_s, costs.prompt_s)
    assert max(gaps_s) <= max(1.03 * bound_s + taken_for_tokens_s(costs), least_s)
    assert median(prompt_tokens) >= 0.9 * paying_tokens(costs), "as many prompt tokens as that allows"


@given(devices, st.integers(0, 9))
@settings(max_examples=10, phases=[Phase.generate], deadline=None)
def test_beside_prompts_in_captured_forwards_no_stream_waits_longer_than_two_steps(
    costs: Costs, seed: int
) -> None:
    costs = replace(costs, is_captured=True)
    gaps_s, prompt_tokens = streamed(costs, 0.0, seed)
    full_s, token_s = decode_s(costs, 2 * ROWS), costs.prompt_token_s
    bound_s = full_s + max(full_s, costs.prompt_s + 256 * token_s)
    assert max(gaps_s) <= 1.03 * bound_s + taken_for_tokens_s(costs)
    # Forwards of more than a thousand tokens have a third more than the next smaller one.
    wanted = 0.75 * paying_tokens(costs) - 2 * ROWS
    assert median(prompt_tokens) >= wanted, "as many prompt tokens as that allows"


@given(devices, st.booleans())
@settings(max_examples=10, phases=[Phase.generate], deadline=None)
def test_it_is_the_same_in_every_run_and_never_trapped_in_small_lots(costs: Costs, is_captured: bool) -> None:
    costs = replace(costs, is_captured=is_captured)
    found = [median(streamed(costs, 0.1, seed)[1]) for seed in range(3)]
    # Full forwards are twice the size of the next smaller one, at most.
    assert max(found) <= (2.0 if is_captured else 1.15) * min(found)
    assert min(found) >= 0.75 * paying_tokens(costs) - 2 * ROWS
