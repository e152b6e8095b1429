"""A dry run of the saturation benchmark: a few jobs, one way that cuts prompts small and two that do not."""

import pytest

from benchmarks.load import Load
from benchmarks.saturation import LEARNT, Plan, Way, measure_plan
from llama_herd.worker.settings import BUNDLED_MODEL

pytestmark = pytest.mark.long

LOAD = Load(slots=4, short_prompt=96, max_tokens=8, num_jobs=12)


def test_a_dry_run_reports_every_round_of_every_way() -> None:
    plan = Plan("tales", BUNDLED_MODEL, LOAD, ways=(Way(4), Way(LEARNT, -1), Way(8192)), rounds=2)
    rounds = measure_plan(plan)
    assert [len(runs) for runs in rounds] == [2, 2, 2]
    cut, patient, whole = (runs[0] for runs in rounds)
    assert 0 < cut["itl_ms"]["p50"] <= cut["itl_ms"]["p99"]
    # Prompts that are taken whole wait for no step: more rows decode.
    assert 0 < cut["decoding_rows"] < whole["decoding_rows"] <= LOAD.slots
    assert cut["decoding_rows"] < patient["decoding_rows"], "of 16 tokens or more"
