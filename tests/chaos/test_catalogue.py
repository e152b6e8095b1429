"""Faults as a run strikes them: workers come and go, jobs flow, each strike has something to break."""

import pytest

from tests.chaos.harness.herd import Herd
from tests.chaos.harness.plan import ChaosPlan
from tests.chaos.harness.report import ChaosReport, FaultSummary
from tests.chaos.harness.run import ChaosRun

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def struck(herd: Herd, *faults: str) -> ChaosReport:
    """The report of a run in which each of these faults strikes once."""
    plan = ChaosPlan(dict.fromkeys(faults, 1), num_jobs=1, max_tokens=150, seed=0)
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
