"""The budget of prompt tokens follows what steps take, here by a made-up processor."""

import pytest

from llama_herd.worker.engine.prefill_budget import ALONE_FACTOR, PATIENT_STEPS, PrefillBudget

ROWS = 8


def taught(
    budget: PrefillBudget, decode_s: float, free: int, token_s: float, steps: int = 40
) -> PrefillBudget:
    """By steps on a processor where the first `free` prompt tokens cost nothing beside the rows."""
    for _ in range(steps):
        budget.note(0, ROWS, decode_s)
        tokens = budget.beside(ROWS)
        budget.note(tokens, ROWS, decode_s + token_s * max(0, tokens - free))
    return budget


def test_a_fixed_one_stays() -> None:
    assert taught(PrefillBudget.from_setting(24, "cpu"), 1.0, free=0, token_s=0.001).beside(ROWS) == 24


def test_prompts_take_as_long_as_the_rest_of_the_step() -> None:
    budget = taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=0, token_s=0.001)
    assert budget.beside(ROWS) == pytest.approx(100, abs=3)


def test_tokens_that_cost_nothing_beside_the_rows_are_taken_too() -> None:
    budget = taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=50, token_s=0.001)
    assert 130 <= budget.beside(ROWS) <= 150


def test_beside_streams_that_can_wait_prompts_take_as_long_as_several_steps() -> None:
    budget = taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=0, token_s=0.002)
    assert budget.beside(ROWS, can_wait=True) == 2 * budget.beside(ROWS), "no more than twice the last one"
    budget.note(400, ROWS, 0.9)
    assert budget.beside(ROWS, can_wait=True) == pytest.approx(PATIENT_STEPS * 50, abs=8)
    assert (
        taught(PrefillBudget.from_setting(24, "cpu"), 1.0, free=0, token_s=0.001).beside(ROWS, can_wait=True)
        == 24
    )


def test_it_stays_within_its_bounds() -> None:
    assert taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=0, token_s=1.0).beside(ROWS) == 16
    assert (
        taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=0, token_s=0.0).beside(ROWS)
        == 16 * ALONE_FACTOR
    )


def test_it_at_most_doubles_in_a_step() -> None:
    budget = PrefillBudget.from_setting(0, "cpu")
    budget.note(0, ROWS, 0.1)
    budget.note(16, ROWS, 0.1)
    assert budget.beside(ROWS) == 32


def test_it_comes_down_when_tokens_cost_more() -> None:
    budget = taught(PrefillBudget.from_setting(0, "cpu"), 0.1, free=0, token_s=0.001)
    assert taught(budget, 0.1, free=0, token_s=0.004).beside(ROWS) == pytest.approx(25, abs=3)


@pytest.mark.parametrize(("rows_before", "num_decoding"), [(1, 31), (1, 6), (12, 6), (32, 20)])
def test_where_prompts_always_wait_it_is_right_by_a_step_of_other_rows(
    rows_before: int, num_decoding: int
) -> None:
    """Of 32 that run some decode; each token of a step takes 1 ms, and reading the weights 20."""
    budget = PrefillBudget.from_setting(0, "cpu")
    budget.note(0, rows_before, 0.020 + 0.001 * rows_before)
    for _ in range(40):
        tokens = budget.beside(32)
        budget.note(tokens, num_decoding, 0.020 + 0.001 * (num_decoding + tokens))
    assert budget.beside(32) == pytest.approx(20 + 32, abs=1)


def test_steps_without_streams_teach_nothing() -> None:
    budget = PrefillBudget.from_setting(0, "cpu")
    budget.note(512, 0, 9.0)
    budget.note(16, ROWS, 9.0)  # what a step takes without prompts is not known yet
    assert budget.beside(ROWS) == 16


def test_alone_prompts_take_many_tokens() -> None:
    assert PrefillBudget.from_setting(0, "cpu").alone == 16 * ALONE_FACTOR
    assert PrefillBudget.from_setting(3, "cuda").alone == 3 * ALONE_FACTOR
