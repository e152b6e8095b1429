"""The whole plan from end to end, on the CPU with a tiny model, and what faults of its steps cost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS
from benchmarks.gpu.plan import CALL_S, WHOLE, planned
from benchmarks.gpu.report import SECTION, for_page
from benchmarks.gpu.step import NOT_HERE, OK
from benchmarks.report import PAGE, section

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
        "hang beside": "timed out after 3 s",
        "well": OK,
    }
    children = [fact["child"] for fact in journal.entries("fact") if fact["step"] == "hang"]
    assert len(children) == 2
    assert not any(map(is_running, children))
    assert "illegal memory access" in done.stdout
    logs = {path.name: path.read_text(errors="replace") for path in tmp_path.glob("*.txt")}
    assert "===== crash" in logs["log.txt"]
    assert "===== garbage" in logs["log-one.txt"]
    assert "===== hang beside" in logs["log-other.txt"]


@pytest.mark.long
@pytest.mark.timeout(60)
def test_what_does_not_fit_into_the_time_is_left_out_and_named(tmp_path: Path) -> None:
    done = run("whole", "--rehearse", "--out", str(tmp_path), "--seconds", "5")
    assert done.returncode == 0
    ends = Journal(tmp_path).ends
    assert set(ends) == {step.name for step in WHOLE}
    assert all(end.startswith("skipped: ") for end in ends.values())
    assert "conditions: skipped: 2 s left, it needs 12" in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(900)
def test_every_step_of_the_plan_runs_and_every_workload_is_measured(tmp_path: Path) -> None:
    from benchmarks.gpu.peers import CONTINUOUS, FORWARD, STATIC

    folder, again = tmp_path / "first", tmp_path / "second"
    given = ("whole", "--rehearse", "--models", str(tmp_path / "models"), "--seconds", "880")
    done = run(*given, "--out", str(folder), timeout_s=890)
    assert done.returncode == 0
    journal = Journal(folder)
    bad = {step: end for step, end in journal.ends.items() if end not in (OK, NOT_HERE)}
    assert not bad, done.stdout
    assert set(journal.ends) == {step.name for step in WHOLE}
    not_here = [step for step, end in journal.ends.items() if end == NOT_HERE]
    assert all(step.startswith(("kernel ", "peer llama.cpp")) for step in not_here)
    assert {(m.workload, m.system) for m in journal.measurements} == {
        *((f"W{number}", OURS) for number in range(1, 9)),
        *((name, OURS) for name in ("W3s", "steps", "mixed", "kills")),
        *((name, f"{OURS}, no learning") for name in ("W3s", "steps")),
        *(("W1", STATIC), ("W2", CONTINUOUS), ("W3", CONTINUOUS), ("W5", FORWARD)),
    }
    # Those that nobody killed, and those that went on elsewhere, have the ids of a run without kills.
    (note,) = {m.note for m in journal.measurements if m.workload == "kills"}
    said = re.fullmatch(r".* (\d+) of (\d+) resumed, (\d+) of (\d+) not resumed, 0 bad", note)
    assert said is not None
    assert said[1] == said[2] != "0"
    assert said[3] == said[4]
    assert run(*given, "--out", str(again), "--after", str(folder)).returncode == 0
    assert Journal(again).ends == {"conditions": OK}
    shown = run("report", str(folder), str(again)).stdout
    assert "Rehearsed on a tiny model" in shown
    assert "through embedded Redis, Celery and the token channel" in shown
    old = section(PAGE.read_text(), SECTION)
    assert old is not None
    page = PAGE.read_text().replace(old, for_page([journal, Journal(again)]))
    assert len(page.splitlines()) <= 360, "all of it has room on the page"


def test_what_was_well_is_not_run_again(tmp_path: Path) -> None:
    before, last = Journal(tmp_path / "first"), Journal(tmp_path / "second")
    for name, outcome in (
        ("conditions", OK),
        ("laws", "exit code 1"),
        ("decode", OK),
        ("mixed", "signal 11"),
    ):
        before.add("end", step=name, outcome=outcome, seconds=1.0)
    last.add("end", step="mixed", outcome=OK, seconds=1.0)
    last.add("end", step="peer llama.cpp", outcome=NOT_HERE, seconds=1.0)
    left = [step.name for step in planned([before, last])]
    known = {"decode", "mixed", "peer llama.cpp"}
    assert left == [step.name for step in WHOLE if step.name not in known]
    assert planned([]) == list(WHOLE)


def test_the_plan_has_steps_that_are_known_and_fit() -> None:
    from benchmarks.gpu.steps import STEPS

    assert len({step.name for step in WHOLE}) == len(WHOLE)
    assert {step.arguments[1] for step in WHOLE} == set(STEPS)
    assert all(step.least_s <= step.limit_s < CALL_S for step in WHOLE)
