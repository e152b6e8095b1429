"""A run of chaos comes to its end, and to a report, whatever it meets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.faults.catalogue import FAULTS
from tests.chaos.harness.faults.fault import Fault, Strike
from tests.chaos.harness.faults.standstill import frozen
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.plan import ChaosPlan
from tests.chaos.harness.report import ChaosReport
from tests.chaos.harness.run import ChaosRun
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

NUM_JOBS = 20


def broken_by(herd: Herd, monkeypatch: pytest.MonkeyPatch, *strikes: Strike) -> ChaosReport:
    """The report of a run in which each of these strikes once, in any order."""
    faults = {strike.__name__: Fault(strike.__name__, strike, "") for strike in strikes}
    for name, fault in faults.items():
        monkeypatch.setitem(FAULTS, name, fault)
    return ChaosRun(
        herd, ChaosPlan(dict.fromkeys(faults, 1), NUM_JOBS, 60, seed=0), lambda progress: None
    ).run()


def test_a_worker_that_does_not_stop_and_one_that_does_not_start_break_a_law_and_the_run_goes_on(
    herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, broken = herd.start_worker, [{"model": Path("nowhere")}]

    def stillborn(**options: Any) -> TendedWorker:
        """The next one has no model."""
        return start(**(options | (broken.pop() if broken else {})))

    @contextmanager
    def deaf(herd: Herd) -> Iterator[list[str]]:
        victim = herd.busiest()
        with monkeypatch.context() as patched, frozen([victim]):
            patched.setattr("tests.local.tended_worker.PATIENCE_S", 0.1)
            victim.stop()
        yield []

    @contextmanager
    def barren(herd: Herd) -> Iterator[list[str]]:
        herd.busiest().kill()
        monkeypatch.setattr(herd, "start_worker", stillborn)
        yield []

    report = broken_by(herd, monkeypatch, deaf, barren)
    laws = [str(violation).splitlines()[0] for violation in report.violations]
    assert any("deaf: worker" in law and "did not end" in law for law in laws), laws
    assert any("ended with exit code" in law for law in laws), laws
    assert len(laws) == 2
    assert not report.cut_short
    assert report.verdict.num_jobs >= NUM_JOBS


@pytest.mark.parametrize("surprise", [RuntimeError("nobody knows"), KeyboardInterrupt()])
def test_a_run_that_ends_early_looks_at_what_there_is_and_says_so(
    herd: Herd, monkeypatch: pytest.MonkeyPatch, surprise: BaseException
) -> None:
    @contextmanager
    def surprising(herd: Herd) -> Iterator[list[str]]:
        herd.busiest().kill()
        raise surprise
        yield []

    report = broken_by(herd, monkeypatch, surprising)
    assert report.cut_short.startswith(type(surprise).__name__)
    assert report.exit_code == 1
    assert report.violations == []
    assert report.verdict.num_jobs == len(herd.jobs.accepted) > 0


def test_jobs_that_cannot_be_looked_at_are_not_said_to_be_well(
    herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_verdict() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(herd, "verdict", no_verdict)
        report = broken_by(herd, patched)
    assert report.cut_short == "KeyboardInterrupt"
    assert [violation.law for violation in report.violations] == ["checked"]
