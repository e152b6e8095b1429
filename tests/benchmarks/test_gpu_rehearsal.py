"""The unattended runs from end to end, on the CPU with a tiny model, and what faults of their steps cost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS
from benchmarks.gpu.plans import PLANS, planned
from benchmarks.gpu.step import NOT_HERE, OK

ROOT = Path(__file__).parents[2]


def run(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a run ends all its children."""
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.program
@pytest.mark.timeout(300)
def test_a_step_that_fails_costs_no_other_its_results(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/benchmarks/failing_run.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    journal = Journal(tmp_path)
    ends = journal.ends
    assert ends.pop("too long").startswith("skipped: ")
    assert ends == {
        "hang": "timed out after 3 s",
        "crash": "signal 11",
        "garbage": OK,
        "fail": "exit code 1",
        "well": OK,
    }
    (child,) = [fact["child"] for fact in journal.entries("fact") if fact["step"] == "hang"]
    assert not is_running(child)
    assert "illegal memory access" in done.stdout
    assert "===== garbage" in (tmp_path / "log.txt").read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout(60)
def test_what_does_not_fit_into_the_time_is_left_out_and_named(tmp_path: Path) -> None:
    done = run("second", "--rehearse", "--out", str(tmp_path), "--seconds", "5")
    assert done.returncode == 0
    ends = Journal(tmp_path).ends
    assert set(ends) == {step.name for step in PLANS["second"]()}
    assert all(end.startswith("skipped: ") for end in ends.values())
    assert "conditions: skipped: 2 s left, it needs 20" in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(900)
def test_all_three_runs_measure_every_workload_and_every_peer(tmp_path: Path) -> None:
    from benchmarks.gpu.peers import CONTINUOUS, FORWARD, STATIC

    journals = [Journal(tmp_path / name) for name in PLANS]
    for journal in journals:
        name, models = journal.folder.name, str(tmp_path / "models")
        done = run(name, "--rehearse", "--out", str(journal.folder), "--models", models, timeout_s=600)
        assert done.returncode == 0
        bad = {step: end for step, end in journal.ends.items() if end not in (OK, NOT_HERE)}
        assert not bad, done.stdout
    measured = {(m.workload, m.system) for journal in journals for m in journal.measurements}
    assert measured >= {
        *((f"W{number}", OURS) for number in range(1, 9)),
        *(("W1", f"{OURS}, no kernels"), ("W1", f"{OURS}, no blocks")),
        *(("W1", STATIC), ("W2", STATIC), ("W5", FORWARD)),
        *(("W2", CONTINUOUS), ("W3", CONTINUOUS)),
    }
    shown = run("report", *(str(journal.folder) for journal in journals)).stdout
    assert "Rehearsed on a tiny model" in shown
    assert "through embedded Redis, Celery and the token channel" in shown


def test_what_was_not_well_is_repeated_first(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    ends = (("laws", "timed out after 100 s"), ("decode", OK), ("profile --short", "signal 11"))
    for name, outcome in ends:
        before.add("end", step=name, outcome=outcome, seconds=1.0)
    before.add("end", step="same --without graphs", outcome=NOT_HERE, seconds=1.0)
    names = [step.name for step in planned("second", [before])]
    own = [step.name for step in PLANS["second"]()]
    assert names == [*own[:2], "laws", "profile --short", *own[2:]]
    assert [step.name for step in planned("second", [])] == own


def test_every_run_fits_its_machine() -> None:
    """Names of steps are known, and no two of a run are alike."""
    from benchmarks.gpu.steps import STEPS

    for name in PLANS:
        steps = PLANS[name]()
        assert len({step.name for step in steps}) == len(steps)
        assert {step.arguments[1] for step in steps} <= set(STEPS)
        assert all(step.least_s <= step.limit_s for step in steps)
