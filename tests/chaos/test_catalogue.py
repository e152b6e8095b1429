"""Faults as a run strikes them: workers come and go, jobs flow, each strike has something to break."""

from pathlib import Path

import pytest

from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.plan import ChaosPlan
from tests.chaos.harness.reference import Reference
from tests.chaos.harness.report import ChaosReport, FaultSummary
from tests.chaos.harness.run import ChaosRun
from tests.chaos.harness.text_models import write_text_models

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def struck(herd: Herd, *faults: str, strikes: int = 1) -> ChaosReport:
    """The report of a run in which each of these faults strikes so often."""
    plan = ChaosPlan(dict.fromkeys(faults, strikes), num_jobs=1, max_tokens=150, seed=0)
    return ChaosRun(herd, plan, lambda progress: None).run()


def summaries_of(report: ChaosReport) -> dict[str, FaultSummary]:
    return {summary.fault: summary for summary in report.fault_summaries}


def test_workers_that_leave_hand_their_jobs_over(herd: Herd, figures: list[str]) -> None:
    faults = ("stop", "stop-twice", "quit")
    report = struck(herd, *faults)
    assert report.violations == []
    for name, summary in summaries_of(report).items():
        assert summary.met
        figures.append(f"{name}: {summary.met} jobs go on elsewhere at most {summary.max_s} s later")
    assert summaries_of(report).keys() == set(faults)


def test_what_redis_refuses_and_what_producers_end_or_send_wrong_breaks_no_law(herd: Herd) -> None:
    faults = ("redis-full", "disk-full", "malformed", "hostile", "mischief", "cancel", "revoke", "expire")
    herd.settings = herd.settings.model_copy(update={"remote_control": True})
    report = struck(herd, *faults)
    assert report.violations == []
    assert summaries_of(report).keys() == set(faults)


def test_texts_of_dead_workers_that_embed_and_rank_have_their_vectors_once(
    server: FragileRedis, endless: Path, tmp_path: Path, reference: Reference
) -> None:
    models = write_text_models(tmp_path)
    with Herd(server, endless, tmp_path, reference=reference, text_models=models) as herd:
        report = struck(herd, "kill-texts", strikes=3)
    assert report.violations == []
    assert report.verdict.num_resumed
