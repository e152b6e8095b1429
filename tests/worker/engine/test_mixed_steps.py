"""Laws of steps with tokens of prompts beside rows that decode: each job gets what it gets alone.

The captured forwards are made small, so that a step meets the edges of all of them and needs several.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.worker.engine import prefill, scheduler, slots, step_graphs
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.runner import ModelRunner
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.examples import seeds
from tests.model.plain_kernels import with_plain_kernels
from tests.worker.engine_run import Collector, finish
from tests.worker.overlapping import Overlapping
from tests.worker.ways_to_draw import MODES, job_of, jobs, said

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("masks_as_on_a_card")]

TOKENS = (8, 16, 32)
#: Sequences of which each mode has one, or as many as it asks for.
ALL = len(MODES) + 2


@pytest.fixture(autouse=True)
def small_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prefill, step_graphs):
        monkeypatch.setattr(module, "TOKENS", TOKENS)
    for module in (prefill, slots):
        monkeypatch.setattr(module, "SPAN_TOKENS", TOKENS[0])
    monkeypatch.setattr(scheduler, "MAX_SCORED_TOKENS", TOKENS[-1])


def with_scoring(llama: Llama, scoring: Scoring) -> Llama:
    blocks = (replace(one, attention=replace(one.attention, scoring=scoring)) for one in llama.blocks)
    return replace(llama, blocks=tuple(blocks))


def with_budget(settings: WorkerSettings, prefill_tokens: int) -> WorkerSettings:
    return settings.model_copy(update={"prefill_tokens": prefill_tokens})


def run_mixed(
    model: LoadedModel, settings: WorkerSettings, llama: Llama, sequences: list[Sequence]
) -> Collector:
    sink = Collector()
    engine = Overlapping(model, settings, sink, llama).engine
    engine.submit(*sequences)
    finish(engine)
    return sink


def run_alone(model: LoadedModel, llama: Llama, sequences: list[Sequence]) -> Collector:
    """One by one, each step read before the next one, with pages that lie anywhere."""
    cache = Cache(
        llama.config, model.cache.pages.num_pages, dtype=model.cache.storage.dtype, consecutive=False
    )
    sink = Collector()
    for one in sequences:
        runner = ModelRunner(llama, cache)
        engine = Engine(runner, cache.prefixes, max_rows=1, prefill=PrefillBudget(512), sink=sink)
        engine.submit(one)
        finish(engine)
    return sink


def edges(model: LoadedModel) -> list[Sequence]:
    """Prompts whose tokens but the last fill a forward, all but one of it, or one more; and longer ones."""
    sizes = sorted({2, *(size + more for size in TOKENS for more in (0, 1, 2)), 70, 97})
    rng = random.Random(1)
    modes = [MODES[name] for name in ("greedy", "plain", "scored prompt", "penalties", "biases")]
    return [
        one
        for n, size in enumerate(sizes)
        for one in model.maker.sequences(
            f"job-{n}",
            job_of(
                {"temperature": 0.0, "max_tokens": 4 + n, "seed": n, **modes[n % len(modes)]},
                prompt_ids=tuple(rng.choices(range(3, 250), k=size)),
            ),
            now_ms=0,
        )
    ]


@pytest.mark.parametrize("prefill_tokens", [5, 33, 1000])
@pytest.mark.parametrize(
    "scoring", [Scoring(), Scoring(window=20), Scoring(0.4, window=9, cap=2.0)], ids=["all", "window", "cap"]
)
@pytest.mark.parametrize("has_kernel", [True, False], ids=["by spans", "token by token"])
def test_prompts_at_the_edges_of_forwards_get_what_they_get_alone(
    wide: LoadedModel, settings: WorkerSettings, scoring: Scoring, prefill_tokens: int, has_kernel: bool
) -> None:
    llama = with_scoring(wide.llama, scoring)
    kernels, _ = with_plain_kernels(llama)
    if not has_kernel:
        blocks = (replace(one, attention=replace(one.attention, prefill=None)) for one in kernels.blocks)
        kernels = replace(kernels, blocks=tuple(blocks))
    found = run_mixed(wide, with_budget(settings, prefill_tokens), kernels, edges(wide))
    assert said(found) == said(run_alone(wide, llama, edges(wide)))


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
    """By a cancel, a deadline or a lost claim; others take its slot and its pages."""
    rng, sink = random.Random(seed), Collector()
    alone = said(run_alone(wide, wide.llama, edges(wide)))
    engine = Overlapping(wide, with_budget(settings, 7), sink).engine
    waiting, doomed = edges(wide), list[Sequence]()
    while waiting or engine.has_work:
        while waiting and rng.random() < 0.6:
            engine.submit(waiting.pop())
        half = [one for one in engine.scheduler.running if 0 < one.num_cached < len(one.prompt_ids) - 1]
        if half and len(doomed) < 5 and rng.random() < 0.5:
            doomed.append(rng.choice(half))
            if rng.random() < 0.5:
                doomed[-1].deadline_s = 0.0
            else:
                engine.abort([doomed[-1].info], rng.choice(["cancelled", "dropped"]))
        engine.step()
        engine.prefixes.check()
    assert doomed
    assert engine.prefixes.pages.num_held == 0
    gone = {(one.job_id, one.choice) for one in doomed}
    found = said(sink)
    assert all(found[name] == lines for name, lines in alone.items() if name not in gone)
    told = [found.get(name, [])[:1] for name in gone]
    assert all(one in ([], ["cancelled"], ["deadline"]) for one in told)


def test_a_resumed_sequence_is_a_prompt_as_far_as_its_recorded_ids_go(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    whole = run_alone(wide, wide.llama, edges(wide)).ids
    unscored = [one for one in edges(wide) if one.params.prompt_logprobs is None]
    resumed = [one for one in unscored if len(whole[one.job_id]) > 3]
    for one in resumed:
        one.replay(whole[one.job_id][:3])
    found = run_mixed(wide, with_budget(settings, 33), wide.llama, resumed).ids
    assert found == {one.job_id: whole[one.job_id][3:] for one in resumed}
