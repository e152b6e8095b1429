"""On a card, too, all rows of a batch decode together for long enough to measure."""

from collections.abc import Iterator

import pytest

from benchmarks.gpu.scale import FULL, Load
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.engine.sequence import Sequence

#: Steps whose median is worth something, and steps that pass while a profiler starts.
LEAST_STEPS, SPARE_STEPS = 16, 4


def sequence(number: int, load: Load) -> Sequence:
    return Sequence(
        job_id=f"job-{number}",
        prompt_ids=[number] * load.num_in,
        params=SamplingParams(max_tokens=load.num_out, ignore_eos=True),
        seed=0,
        max_length=FULL.config.context_length,
        eos_ids=frozenset(),
        detokenizer=Detokenizer([b""]),
    )


def rows_that_draw(load: Load) -> Iterator[int]:
    """How many draw a token in each step of a load, by the budget for prompts that a card begins with."""
    pages = Pages(load.cache_tokens // PAGE_TOKENS, consecutive=False)
    budget = PrefillBudget.from_setting(0, "cuda")
    scheduler = Scheduler(PrefixCache(pages), max_rows=load.num_rows, prefill=budget)
    for number in range(load.num_requests):
        scheduler.submit(sequence(number, load))
    while scheduler.waiting or scheduler.running:
        scheduler.admit()
        rows = scheduler.next_batch()
        for row in rows:
            scheduler.note_computed(row)
            scheduler.note_read(row)
        drawing = [row.sequence for row in rows if row.is_complete]
        yield len(drawing)
        for one in drawing:
            one.ids.append(1)
            if len(one.ids) == load.num_out:
                scheduler.remove(one)


@pytest.mark.parametrize("load", [FULL.single, FULL.batch, *FULL.profiled], ids=str)
def test_a_steady_step_is_seen_often_enough(load: Load) -> None:
    assert list(rows_that_draw(load)).count(load.num_rows) >= LEAST_STEPS


@pytest.mark.parametrize("load", FULL.profiled, ids=str)
def test_all_rows_decode_while_they_are_profiled(load: Load) -> None:
    drawing = list(rows_that_draw(load))
    assert drawing.count(load.num_rows) >= FULL.num_profiled_steps + SPARE_STEPS


def test_outputs_that_spread_are_drawn_around_their_mean() -> None:
    """And the cache has room for the longest in every row."""
    outputs = FULL.spread.outputs(seed=0)
    assert (min(outputs), max(outputs)) == (64, 448)
    assert sum(outputs) / len(outputs) == pytest.approx(FULL.saturation.num_out, rel=0.03)
    assert FULL.spread.cache_tokens == 256 * 11 * PAGE_TOKENS
    assert set(FULL.batch.outputs(seed=0)) == {256}
