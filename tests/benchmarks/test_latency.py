"""A dry run of the latency benchmark: a few jobs, one budget that cuts prompts and one that does not."""

import json
from pathlib import Path

import pytest

from benchmarks.latency import Plan, measure, show

DRY = Plan(
    budgets=(16, 8192),
    slots=4,
    long_prompt=100,
    short_prompt=4,
    max_tokens=4,
    num_jobs=8,
    jobs_per_s=100.0,
    repeats=1,
)


def test_a_dry_run_reports_every_figure_of_both_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(json.dumps(measure(DRY, tmp_path)))
    assert [run["prefill_tokens"] for run in report["runs"]] == [16, 8192]
    for run in report["runs"]:
        for load in (run["beside"], run["poisson"]):
            assert load["step_ms"] > 0
            assert 0 < load["itl_ms"]["p50"] <= load["itl_ms"]["p95"] <= load["itl_ms"]["p99"]
            assert load["ttft_long_ms"]["p50"] > 0
        assert run["poisson"]["ttft_short_ms"]["p50"] > 0
    show(report)
    assert "Poisson load" in capsys.readouterr().out
