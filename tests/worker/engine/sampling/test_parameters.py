"""Law: each field of a job's sampling is drawn in every way to draw, and alike, or named as not drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_herd.model.kernels.draw import Draw
from llama_herd.model.kernels.native import load_kernels
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sampling.parameters import FLOORS, IN_ORDER, PARAMETERS
from llama_herd.worker.engine.sampling.rules import RULES
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import EOS_ID
from tests.worker.engine_run import Collector, finish, with_empty_cache
from tests.worker.overlapping import Overlapping, with_layers
from tests.worker.ways_to_draw import PENALTIES, said

NOT_DRAWN = ("max_tokens", "stop", "prompt_logprobs", "truncate_prompt_tokens")
#: The fields that are no row of a table: ends, noise, what is said of a draw, and what is not of one.
ELSEWHERE = ("stop_token_ids", "ignore_eos", "seed", "n", "logprobs", "top_logprobs", *NOT_DRAWN)

WARM = {"temperature": 1.3}

#: What a job asks for, and a value of the field that changes what is said of it.
EXAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "temperature": (WARM, 0.4),
    "top_n_sigma": (WARM, 0.5),
    "min_p": (WARM, 0.6),
    "top_k": (WARM, 2),
    "top_p": (WARM, 0.2),
    "repetition_penalty": ({}, 1.8),
    "presence_penalty": ({}, 1.5),
    "frequency_penalty": ({}, 1.5),
    "repeat_last_n": (PENALTIES, 1),
    "logit_bias": (WARM, {50: 20.0}),
    "min_tokens": ({"logit_bias": {EOS_ID: 30.0}}, 5),
    "stop_token_ids": ({"logit_bias": {50: 30.0}}, [50]),
    "ignore_eos": ({"logit_bias": {EOS_ID: 30.0}}, True),
    "seed": (WARM, 1),
    "n": (WARM, 2),
    "logprobs": ({}, True),
    "top_logprobs": ({"logprobs": True}, 2),
}


def test_every_field_has_one_place() -> None:
    numbers = [one.field for one in PARAMETERS]
    of_rules = [field for rule in RULES for field in rule.fields]
    named = [*numbers, *ELSEWHERE, *(field for field in of_rules if field not in numbers)]
    assert sorted(named) == sorted(SamplingParams.model_fields)


def test_a_rule_by_what_slots_hold_reads_numbers_of_slots() -> None:
    numbers = {one.field for one in PARAMETERS}
    assert all(set(rule.fields) <= numbers for rule in RULES if rule.in_slots is not None)


def test_what_a_job_is_told_of_is_settled_before_any_other_rule() -> None:
    told = [rule.is_told for rule in RULES]
    assert told == sorted(told, reverse=True)


def test_a_parameter_is_off_by_default_and_filters_in_one_way_at_most() -> None:
    default = SamplingParams()
    assert not [one.field for one in PARAMETERS if one.value_in(default) != one.off]
    assert not set(FLOORS) & set(IN_ORDER)


def engine_of(model: LoadedModel, settings: WorkerSettings, sink: Collector, draw: Draw | None) -> Engine:
    """One that reads each step before the next."""
    runner = ModelRunner(model.llama, model.cache, draw)
    prefill = PrefillBudget.from_setting(settings.prefill_tokens, "cpu")
    return Engine(runner, model.cache.prefixes, max_rows=settings.slots, prefill=prefill, sink=sink)


Run = Callable[[dict[str, Any]], Collector]


@pytest.fixture(scope="module")
def native(kernels_folder: Path) -> Draw | None:
    return load_kernels(kernels_folder).draw


@pytest.fixture(params=["eager", "native", "slots"])
def run(
    request: pytest.FixtureRequest, loaded_wide: LoadedModel, settings: WorkerSettings, native: Draw | None
) -> Run:
    """Run a job in one of the ways to draw."""

    def run(sampling: dict[str, Any]) -> Collector:
        model, sink = with_empty_cache(loaded_wide), Collector()
        model.llama = with_layers(model.llama, 1)  # enough to draw by
        if request.param == "slots":
            engine = Overlapping(model, settings, sink).engine
        else:
            engine = engine_of(model, settings, sink, native if request.param == "native" else None)
        asked = {"temperature": 0.0, "max_tokens": 10, "seed": 7, **sampling}
        job = GenerationJob(prompt="once upon a time", sampling=SamplingParams.model_validate(asked))
        for one in model.maker.sequences("job", job, now_ms=0):
            engine.submit(one)
        finish(engine)
        return sink

    return run


#: What the first way to draw said, which the others must say too.
_said: dict[str, Any] = {}


@pytest.mark.parametrize("field", [field for field in SamplingParams.model_fields if field not in NOT_DRAWN])
def test_a_field_is_seen_in_every_way_to_draw(run: Run, field: str) -> None:
    before, value = EXAMPLES[field]
    plain, changed = said(run(before)), said(run({**before, field: value}))
    assert plain != changed
    assert _said.setdefault(field, (plain, changed)) == (plain, changed)
