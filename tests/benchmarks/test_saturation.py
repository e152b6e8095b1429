"""A dry run of the saturation benchmark: a few jobs, one learnt budget and one that takes prompts whole."""

from pathlib import Path

import pytest

from benchmarks.load import Load
from benchmarks.saturation import LEARNT, Plan, measure_plan
from llama_herd.worker.settings import BUNDLED_MODEL

pytestmark = pytest.mark.long

LOAD = Load(slots=4, short_prompt=24, max_tokens=8, num_jobs=8)


def test_a_dry_run_reports_every_round_of_every_budget() -> None:
    plan = Plan("tales", Path(BUNDLED_MODEL), LOAD, budgets=(LEARNT, 8192), rounds=2)
    rounds = measure_plan(plan)
    assert [len(runs) for runs in rounds] == [2, 2]
    learnt, whole = (runs[0] for runs in rounds)
    assert 0 < learnt["itl_ms"]["p50"] <= learnt["itl_ms"]["p99"]
    # Prompts that are taken whole wait for no step: more rows decode.
    assert 0 < learnt["decoding_rows"] < whole["decoding_rows"] <= LOAD.slots
