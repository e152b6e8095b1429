"""The law tests on a card, each outcome written as it comes.

A test that breaks the context, or the process, breaks all after it in the same process: they are run again
in a new one.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks.gpu.journal import Journal

ROOT = Path(__file__).resolve().parent.parent.parent
#: Seconds that one test may take; compiling is part of it.
TEST_LIMIT_S = 60
#: How often pytest is started again after a test broke it.
MAX_STARTS = 6
#: What a test's error says when the context is gone for the whole process.
BROKEN = ("CUDA error", "Triton Error [CUDA]", "CUBLAS_STATUS", "AcceleratorError")
EXIT_BROKEN = 70
PLUGIN_VARIABLE = "LAWS_JOURNAL"


def run(journal: Journal, step: str, arguments: Sequence[str]) -> int:
    """Run pytest until every test has an outcome; how many failed, at least one where none could run."""
    for _ in range(MAX_STARTS):
        known = _outcomes(journal, step)
        done = subprocess.run(
            [*_command(arguments), *(f"--deselect={test}" for test in known)],
            cwd=ROOT,
            env=os.environ | {PLUGIN_VARIABLE: f"{step}:{journal.folder.resolve()}"},
            check=False,
        )
        started = journal.entries("started")
        lost = [
            one["test"]
            for one in started
            if one["step"] == step and one["test"] not in _outcomes(journal, step)
        ]
        for test in lost:
            journal.add("law", step=step, test=test, outcome="killed the process", error="")
        if not lost and done.returncode in (0, 1, 5):  # passed, failed, none left
            break
    outcomes = _outcomes(journal, step)
    return sum(outcome not in ("passed", "skipped") for outcome in outcomes.values()) if outcomes else 1


def _outcomes(journal: Journal, step: str) -> dict[str, str]:
    return {one["test"]: one["outcome"] for one in journal.entries("law") if one["step"] == step}


def _command(arguments: Iterable[str]) -> list[str]:
    options = f"-q -x --maxfail=1000 -p benchmarks.gpu.laws -o timeout={TEST_LIMIT_S} -p no:cacheprovider"
    return [sys.executable, "-m", "pytest", *options.split(), *arguments]


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test that is never heard of again has killed the process."""
    journal, step = _target()
    journal.add("started", step=step, test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write an outcome, and end where no other test can run any more."""
    if report.when != "call" and report.outcome == "passed":
        return
    journal, step = _target()
    error = str(report.longrepr)[-1_500:] if report.failed else ""
    outcome = report.outcome if report.when == "call" or report.outcome == "skipped" else "error"
    journal.add(
        "law", step=step, test=report.nodeid, outcome=outcome, seconds=round(report.duration, 2), error=error
    )
    if any(words in error for words in BROKEN):
        os._exit(EXIT_BROKEN)


def _target() -> tuple[Journal, str]:
    step, _, folder = os.environ[PLUGIN_VARIABLE].partition(":")
    return Journal(Path(folder)), step
