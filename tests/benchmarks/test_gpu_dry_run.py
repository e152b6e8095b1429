"""The GPU benchmark from end to end, on the CPU with a tiny model: every part of it, real workers too."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.measurement import OURS
from benchmarks.gpu.results import Results
from benchmarks.gpu.scale import DRY

pytestmark = pytest.mark.program

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("forked_workers")
def test_a_dry_run_measures_every_workload_and_every_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has torch and, once one test has asked for it, transformers."""
    from benchmarks.gpu.__main__ import main
    from benchmarks.gpu.peers import CONTINUOUS, FORWARD, STATIC

    options = ("--dry-run", "--profile", "--models", str(tmp_path), "--commit", "abc1234")
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *options])
    assert main() == 0
    results = Results.read(tmp_path / "dry-run.json")
    measured = {(m.workload, m.system) for m in results.latest}
    assert measured == {
        *((f"W{number}", OURS) for number in range(1, 9)),
        *(("W1", STATIC), ("W2", STATIC), ("W5", FORWARD)),
        *(("W2", CONTINUOUS), ("W3", CONTINUOUS)),
    }
    assert {m.case[:4] for m in results.latest if m.workload == "W1"} == {"BF16", "Q8_0"}
    assert results.calls[0].conditions["commit"] == "abc1234"
    shown = capsys.readouterr().out
    assert "through embedded Redis, Celery and the token channel" in shown
    assert "not compiled" in shown
    assert "A dry run on a tiny model" in shown
    assert (tmp_path / "dry-run-profile.txt").read_text().count("on the device") == 2


def test_only_adds_what_it_names_to_the_results(tmp_path: Path) -> None:
    from benchmarks.gpu.program import measure

    results = Results.read(tmp_path / "results.json")
    results.begin(DRY.name, {}, Ceilings(1, 1, 1, 1, 1))
    results.write()
    assert (
        measure(
            device="cpu",
            is_dry=True,
            names={"W1"},
            models=tmp_path,
            results_path=results.path,
            commit="",
            with_profile=False,
        )
        == 0
    )
    calls = Results.read(results.path).calls
    assert [{m.workload for m in call.measurements} for call in calls] == [set(), {"W1"}]


def test_an_unknown_part_is_named_beside_those_that_there_are() -> None:
    done = run("--only", "W1,W9")
    assert done.returncode == 2
    assert "no W9; there are W1, W1q, W2" in done.stderr


def test_a_card_that_is_not_there_is_refused_in_one_line() -> None:
    done = run("--device", "cuda:99")
    assert done.returncode == 2
    assert "HERD_DEVICE=cuda:99, but the GPUs here are" in done.stderr
