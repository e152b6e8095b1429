"""The engine's mixed steps by Triton's own attention: each job gets what it gets alone.

The captured forwards are made small. For a card tests/gpu/test_mixed_steps.py has the laws of whole ones.
"""

import random
from dataclasses import replace

import pytest
import torch

from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker import mixed_steps
from tests.worker.mixed_steps import SCORINGS, edges, run_alone, run_mixed, with_budget, with_scoring
from tests.worker.ways_to_draw import said

TOKENS = (8, 16, 32)


@pytest.fixture(autouse=True)
def small_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_steps.make_forwards_small(monkeypatch, TOKENS)


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings.model_copy(update={"slots": 6, "kv_cache_tokens": 4096, "context_tokens": 256})


@pytest.fixture(scope="module")
def model(device: torch.device, settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(settings, str(device))


def with_triton(llama: Llama) -> Llama:
    from llama_herd.model.kernels.gpu.attention import TritonAttention
    from llama_herd.model.kernels.gpu.rows import TritonRotation
    from llama_herd.model.kernels.gpu.span_attention import TritonSpanAttention

    short, spans, rotation = TritonAttention(4), TritonSpanAttention(), TritonRotation()
    attentions = (
        replace(one.attention, native=short, prefill=spans, rotation=rotation) for one in llama.blocks
    )
    blocks = (replace(one, attention=its) for one, its in zip(llama.blocks, attentions, strict=True))
    return replace(llama, blocks=tuple(blocks))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_prompts_at_the_edges_of_forwards_get_what_they_get_alone(
    model: LoadedModel, settings: WorkerSettings, scoring: str
) -> None:
    llama = with_scoring(model.llama, SCORINGS[scoring])
    found = run_mixed(model, with_budget(settings, 33), with_triton(llama), edges(model, TOKENS)[::3])
    assert said(found) == said(run_alone(model, llama, edges(model, TOKENS)[::3]))


def test_found_pages_are_read_where_they_lie(model: LoadedModel, settings: WorkerSettings) -> None:
    def sequences() -> list[Sequence]:
        return edges(model, TOKENS, num_alike=PAGE_TOKENS + 3)[::3]

    budget = with_budget(settings, 33)
    found, num_found = mixed_steps.run_found(model, budget, with_triton(model.llama), sequences())
    assert num_found >= PAGE_TOKENS
    assert said(found) == said(run_alone(model, model.llama, sequences()))


def test_rows_that_lose_their_places_end_as_they_do_alone(
    model: LoadedModel, settings: WorkerSettings
) -> None:
    few = with_budget(settings, 7).model_copy(update={"slots": 2})
    low, llama = edges(model, TOKENS)[::3], with_triton(model.llama)
    found, lost = mixed_steps.run_crowded(model, few, llama, low, random.Random(1))
    assert lost
    alone = said(run_alone(model, model.llama, edges(model, TOKENS)[::3]))
    assert {name: lines for name, lines in said(found).items() if name in alone} == alone


def test_where_an_engine_dies_in_a_mixed_step_another_goes_on(
    model: LoadedModel, settings: WorkerSettings
) -> None:
    def sequences() -> list[Sequence]:
        return [one for one in edges(model, TOKENS)[::3] if one.params.prompt_logprobs is None]

    rng, llama = random.Random(1), with_triton(model.llama)
    found, num_dead = mixed_steps.run_killed(model, with_budget(settings, 7), llama, sequences, rng)
    assert num_dead
    assert found == run_alone(model, model.llama, sequences()).ids
