"""No model file, however malformed, crashes, hangs or bloats a process; all who look at it say the same.

What is damaged, and how, stands in `good_models`, `gguf_damage` and `json_damage`; `run` looks.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.good_models import write_good_models

pytestmark = pytest.mark.program

#: Damaged files may make a process take so much more than good ones do.
MAX_MORE_BYTES = 48 << 20


@pytest.fixture(scope="module")
def good_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_good_models(folder)
    return folder


def run(good_models: Path, first: int, count: int) -> dict[str, Any]:
    """What became of these cases, in a process whose memory and time are bounded."""
    command = [sys.executable, "-m", "tests.hostile.run", str(good_models), str(first), str(count)]
    # A panic of Rust that looks for its lines takes more memory than is left, and then waits for itself.
    alone = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "RUST_BACKTRACE": "0"}
    done = subprocess.run(command, env=os.environ | alone, capture_output=True, text=True, check=False)
    *_, last = ["", *done.stdout.splitlines()]
    assert done.returncode == 0, f"ended with {done.returncode} at case {last}: {done.stderr}"
    report: dict[str, Any] = json.loads(last)
    return report


def assert_one_clear_error_each(report: dict[str, Any], count: int) -> None:
    assert report["raised"] == []
    assert sum(report["outcomes"].values()) == count
    assert [outcome for outcome in report["outcomes"] if outcome.startswith("other")] == []
    assert report["more_bytes"] < MAX_MORE_BYTES


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_damaged_models_are_served_or_refused(good_models: Path, count: int) -> None:
    report = run(good_models, 0, count)
    assert_one_clear_error_each(report, count)
    assert set(report["good"].values()) == {"loads", "missing file, tensor or key"}
    assert report["outcomes"]["loads"] < count / 4
    assert len(report["outcomes"]) >= 10


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_damaged_models_are_served_or_refused(good_models: Path, part: int) -> None:
    assert_one_clear_error_each(run(good_models, part * 10_000, 10_000), 10_000)
