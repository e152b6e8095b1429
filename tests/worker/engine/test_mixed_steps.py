"""Laws of steps with tokens of prompts beside rows that decode: each job gets what it gets alone.

The captured forwards are made small, so that a step meets the edges of all of them and needs several.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.examples import seeds
from tests.model.plain_kernels import with_plain_kernels
from tests.worker import mixed_steps
from tests.worker.engine_run import Collector
from tests.worker.mixed_steps import ALL, SCORINGS, edges, run_alone, run_mixed, with_budget, with_scoring
from tests.worker.ways_to_draw import MODES, jobs, logprobs, said

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("masks_as_on_a_card")]

TOKENS = (8, 16, 32)


@pytest.fixture(autouse=True)
def small_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_steps.make_forwards_small(monkeypatch, TOKENS)


@pytest.mark.parametrize("prefill_tokens", [5, 33, 1000])
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("has_kernel", [True, False], ids=["by spans", "token by token"])
def test_prompts_at_the_edges_of_forwards_get_what_they_get_alone(
    wide: LoadedModel, settings: WorkerSettings, scoring: str, prefill_tokens: int, has_kernel: bool
) -> None:
    llama = with_scoring(wide.llama, SCORINGS[scoring])
    kernels, _ = with_plain_kernels(llama)
    if not has_kernel:
        blocks = (replace(one, attention=replace(one.attention, prefill=None)) for one in kernels.blocks)
        kernels = replace(kernels, blocks=tuple(blocks))
    found = run_mixed(wide, with_budget(settings, prefill_tokens), kernels, edges(wide, TOKENS))
    alone = run_alone(wide, llama, edges(wide, TOKENS))
    assert said(found) == said(alone)
    assert {name: pytest.approx(numbers, abs=1e-4) for name, numbers in logprobs(alone).items()} == (
        logprobs(found)
    )


@pytest.mark.parametrize("prefill_tokens", [5, 33])
def test_prompts_go_on_behind_pages_that_others_have_computed(
    wide: LoadedModel, settings: WorkerSettings, prefill_tokens: int
) -> None:
    kernels, _ = with_plain_kernels(wide.llama)
    alike = PAGE_TOKENS + 3
    budget = with_budget(settings, prefill_tokens)
    found, num_found = mixed_steps.run_found(wide, budget, kernels, edges(wide, TOKENS, alike))
    assert num_found >= 5 * PAGE_TOKENS
    assert said(found) == said(run_alone(wide, wide.llama, edges(wide, TOKENS, alike)))


@pytest.mark.parametrize("prefill_tokens", [20, 1000])
def test_all_ways_to_draw_get_the_same_beside_prompts_of_several_forwards(
    wide: LoadedModel, settings: WorkerSettings, step_by_step: Callable[..., Collector], prefill_tokens: int
) -> None:
    sequences = jobs(wide, *MODES, num_sequences=ALL)
    found = run_mixed(wide, with_budget(settings, prefill_tokens), wide.llama, sequences)
    assert said(found) == said(step_by_step(*MODES, num_sequences=ALL))


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_who_ends_while_its_prompt_is_computed_disturbs_nobody(
    wide: LoadedModel, settings: WorkerSettings, seed: int
) -> None:
    alone = said(run_alone(wide, wide.llama, edges(wide, TOKENS)))
    found = mixed_steps.disturb(wide, with_budget(settings, 7), edges(wide, TOKENS), random.Random(seed))
    mixed_steps.check_disturbed(*found, alone)


def test_a_resumed_sequence_is_a_prompt_as_far_as_its_recorded_ids_go(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    whole = run_alone(wide, wide.llama, edges(wide, TOKENS)).ids
    resumed = mixed_steps.resumed(edges(wide, TOKENS), whole)
    found = run_mixed(wide, with_budget(settings, 33), wide.llama, resumed).ids
    assert found == {one.job_id: whole[one.job_id][3:] for one in resumed}


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_rows_that_lose_their_places_beside_prompts_end_as_they_do_alone(
    wide: LoadedModel, settings: WorkerSettings, seed: int
) -> None:
    kernels, _ = with_plain_kernels(wide.llama)
    few = with_budget(settings, 7).model_copy(update={"slots": 3})
    rng = random.Random(seed)
    found, lost = mixed_steps.run_crowded(wide, few, kernels, edges(wide, TOKENS), rng)
    assert lost
    alone = said(run_alone(wide, wide.llama, edges(wide, TOKENS)))
    assert {name: lines for name, lines in said(found).items() if name in alone} == alone


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_where_an_engine_dies_in_a_mixed_step_another_goes_on(
    wide: LoadedModel, settings: WorkerSettings, seed: int
) -> None:
    kernels, _ = with_plain_kernels(wide.llama)

    def sequences() -> list[Sequence]:
        return [one for one in edges(wide, TOKENS) if one.params.prompt_logprobs is None]

    rng, small = random.Random(seed), with_budget(settings, 7)
    found, num_dead = mixed_steps.run_killed(wide, small, kernels, sequences, rng)
    assert num_dead
    assert found == run_alone(wide, wide.llama, sequences()).ids
