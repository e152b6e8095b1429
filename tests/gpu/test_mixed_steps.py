"""On a card: steps with tokens of prompts beside rows that decode give each job what it gets alone.

The same laws as of a stand-in device (tests/worker/engine/test_mixed_steps.py), with the forwards as they
are: prompts meet the edges of all of them, and the longest needs several. A thousand scored tokens have ties
of 1e-6 among their alternatives: of these their log-probabilities count.
"""

import random

import pytest

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.worker.engine.prefill import TOKENS
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf
from tests.worker import mixed_steps
from tests.worker.engine_run import Collector, run
from tests.worker.mixed_steps import ALL, SCORINGS, edges, run_alone, run_mixed, with_budget, with_scoring
from tests.worker.ways_to_draw import MODES, Said, jobs, logprobs, said

pytestmark = pytest.mark.gpu

CARD = "cuda:0"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "long.gguf", eos=False, context_length=6_000)
    return WorkerSettings.model_validate(
        {"model": path, "dtype": "float32", "slots": 40, "kv_cache_tokens": 65_536, "prefill_tokens": 512}
    )


@pytest.fixture(scope="module")
def model(settings: WorkerSettings) -> LoadedModel:
    loaded = LoadedModel.load(settings, CARD)
    assert "prompts" in loaded.plan.form.kernels.note
    return loaded


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> dict[str, Collector]:
    """What is said of each job alone, step by step, by the way in which scores are made."""
    llamas = {name: with_scoring(model.llama, scoring) for name, scoring in SCORINGS.items()}
    return {name: run_alone(model, llama, edges(model, TOKENS)) for name, llama in llamas.items()}


def drawn(found: Said) -> Said:
    """The same, but for the ids of alternatives."""
    return {
        name: [line[:2] if isinstance(line, tuple) else line for line in lines]
        for name, lines in found.items()
    }


@pytest.mark.parametrize("prefill_tokens", [100, 1_100, 6_000])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_prompts_at_the_edges_of_forwards_get_what_they_get_alone(
    model: LoadedModel,
    settings: WorkerSettings,
    alone: dict[str, Collector],
    scoring: str,
    prefill_tokens: int,
) -> None:
    llama = with_scoring(model.llama, SCORINGS[scoring])
    found = run_mixed(model, with_budget(settings, prefill_tokens), llama, edges(model, TOKENS))
    assert drawn(said(found)) == drawn(said(alone[scoring]))
    expected = logprobs(alone[scoring])
    assert all(
        numbers == pytest.approx(expected[job_id], abs=1e-3) for job_id, numbers in logprobs(found).items()
    )


def test_prompts_go_on_behind_pages_that_others_have_computed(
    model: LoadedModel, settings: WorkerSettings
) -> None:
    alike, budget = 3 * PAGE_TOKENS + 5, with_budget(settings, 700)
    found, num_found = mixed_steps.run_found(model, budget, model.llama, edges(model, TOKENS, alike))
    assert num_found >= 20 * 3 * PAGE_TOKENS
    assert drawn(said(found)) == drawn(said(run_alone(model, model.llama, edges(model, TOKENS, alike))))


@pytest.mark.parametrize("prefill_tokens", [20, 1_000])
def test_all_ways_to_draw_get_the_same_beside_prompts(
    model: LoadedModel, settings: WorkerSettings, prefill_tokens: int
) -> None:
    off = settings.model_copy(update={"graphs": "off"})
    expected = run(LoadedModel.load(off, CARD), off, jobs(model, *MODES, num_sequences=ALL))
    sequences = jobs(model, *MODES, num_sequences=ALL)
    found = run_mixed(model, with_budget(settings, prefill_tokens), model.llama, sequences)
    assert said(found) == said(expected)


@pytest.mark.parametrize("seed", range(4))
def test_who_ends_while_its_prompt_is_computed_disturbs_nobody(
    model: LoadedModel, settings: WorkerSettings, alone: dict[str, Collector], seed: int
) -> None:
    small = with_budget(settings, 100)
    found, gone = mixed_steps.disturb(model, small, edges(model, TOKENS), random.Random(seed))
    mixed_steps.check_disturbed(drawn(found), gone, drawn(said(alone["all"])))


def test_a_resumed_sequence_is_a_prompt_as_far_as_its_recorded_ids_go(
    model: LoadedModel, settings: WorkerSettings
) -> None:
    whole = run_alone(model, model.llama, edges(model, TOKENS)).ids
    resumed = mixed_steps.resumed(edges(model, TOKENS), whole)
    found = run_mixed(model, with_budget(settings, 700), model.llama, resumed).ids
    assert found == {one.job_id: whole[one.job_id][3:] for one in resumed}


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_lose_their_places_beside_prompts_end_as_they_do_alone(
    model: LoadedModel, settings: WorkerSettings, alone: dict[str, Collector], seed: int
) -> None:
    few = with_budget(settings, 100).model_copy(update={"slots": 3})
    low, rng = edges(model, TOKENS), random.Random(seed)
    found, lost = mixed_steps.run_crowded(model, few, model.llama, low, rng)
    assert lost
    expected = drawn(said(alone["all"]))
    assert {name: lines for name, lines in drawn(said(found)).items() if name in expected} == expected


@pytest.mark.parametrize("seed", range(2))
def test_where_an_engine_dies_in_a_mixed_step_another_goes_on(
    model: LoadedModel, settings: WorkerSettings, alone: dict[str, Collector], seed: int
) -> None:
    def sequences() -> list[Sequence]:
        return [one for one in edges(model, TOKENS) if one.params.prompt_logprobs is None]

    small, rng = with_budget(settings, 100), random.Random(seed)
    found, num_dead = mixed_steps.run_killed(model, small, model.llama, sequences, rng)
    assert num_dead
    assert found == {one.job_id: alone["all"].ids[one.job_id] for one in sequences()}
