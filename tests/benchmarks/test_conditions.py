"""Conditions of a card, with a stand-in for nvidia-smi where there is none."""

import stat
from pathlib import Path

import pytest

from benchmarks.conditions import conditions, gpu_conditions

pytestmark = pytest.mark.long

REPORT = "NVIDIA H200, 580.159.04, 143771 MiB, 1980 MHz, 3201 MHz, 1980 MHz, 700.00 W"


def test_a_card_is_named_with_driver_and_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase \"$*\" in *--id=3*) echo '{REPORT}';; *) exit 6;; esac\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = gpu_conditions()
    assert found["gpu name"] == "NVIDIA H200"
    assert found["gpu driver_version"] == "580.159.04"
    assert found["gpu clocks.sm"] == "1980 MHz"


def test_without_a_driver_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_conditions() == {}


def test_a_commit_can_be_said_where_git_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conditions()["commit"] == "unknown"
    assert conditions("abc1234")["commit"] == "abc1234"
