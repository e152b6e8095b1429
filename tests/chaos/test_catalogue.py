"""Faults as a run strikes them: workers come and go, jobs flow, each strike has something to break."""

import pytest

from llama_herd.chaos.herd import Herd
from llama_herd.chaos.plan import Plan
from llama_herd.chaos.report import Line, Report
from llama_herd.chaos.run import Run

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def struck(herd: Herd, *faults: str) -> Report:
    """The report of a run in which each of these faults strikes once."""
    plan = Plan(dict.fromkeys(faults, 1), num_jobs=1, max_tokens=150, seed=0)
    return Run(herd, plan, lambda progress: None).run()


def lines_of(report: Report) -> dict[str, Line]:
    return {line.fault: line for line in report.lines}


def test_workers_that_leave_hand_their_jobs_over(herd: Herd, figures: list[str]) -> None:
    faults = ("stop", "stop-twice", "quit")
    report = struck(herd, *faults)
    assert report.violations == []
    for name, line in lines_of(report).items():
        assert line.met
        figures.append(f"{name}: {line.met} jobs go on elsewhere at most {line.max_s} s later")
    assert lines_of(report).keys() == set(faults)


def test_what_redis_refuses_and_what_producers_end_or_send_wrong_breaks_no_law(herd: Herd) -> None:
    faults = ("redis-full", "disk-full", "malformed", "hostile", "mischief", "cancel", "revoke", "expire")
    herd.settings = herd.settings.model_copy(update={"remote_control": True})
    report = struck(herd, *faults)
    assert report.violations == []
    assert lines_of(report).keys() == set(faults)
