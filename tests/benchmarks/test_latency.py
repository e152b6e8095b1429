"""A dry run of the latency benchmark: a few jobs, one budget that cuts prompts and one that does not."""

import json

import pytest

from benchmarks.latency import WHOLE, Plan, measure, tables
from benchmarks.load import Load
from benchmarks.shapes import random_shape

pytestmark = pytest.mark.long

TINY = random_shape("tiny", hidden_size=64, num_layers=1, num_heads=2, ffn_size=64, vocab_size=2_048)
LOAD = Load(
    slots=4, long_prompt=100, short_prompt=4, max_tokens=4, num_jobs=8, jobs_per_s=100.0, jobs_per_long=4
)
DRY = Plan(TINY, LOAD, beside=(16, WHOLE), poisson=(16,), rounds=2)


def test_a_dry_run_reports_every_round_of_both_loads() -> None:
    report = json.loads(json.dumps(measure((DRY,))))
    (run,) = report["runs"]
    assert [(budget["prefill_tokens"], len(budget["rounds"])) for budget in run["beside"]] == [
        (16, 2),
        (8192, 2),
    ]
    assert [(budget["prefill_tokens"], len(budget["rounds"])) for budget in run["poisson"]] == [(16, 1)]
    for round in (one for load in ("beside", "poisson") for budget in run[load] for one in budget["rounds"]):
        assert round["step_ms"] > 0
        assert 0 < round["itl_ms"]["p50"] <= round["itl_ms"]["p95"] <= round["itl_ms"]["p99"]
    assert run["poisson"][0]["rounds"][0]["ttft_short_ms"]["p50"] > 0
    beside, poisson = tables(report)
    assert [row[0] for row in beside.rows] == [16, 8192]
    assert "ttft short ms" in poisson.head
