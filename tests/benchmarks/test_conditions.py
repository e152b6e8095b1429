"""Conditions of a measurement, where not all of them can be told."""

from pathlib import Path

import pytest

from benchmarks.conditions import conditions

pytestmark = pytest.mark.long


def test_a_commit_is_unknown_where_git_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conditions()["commit"] == "unknown"
