"""Children that live and end together, and which of them `--gpus` asks for."""

import sys
from pathlib import Path

import pytest

from llama_herd.errors import DeviceError
from llama_herd.worker.cli.children import run_together
from llama_herd.worker.cli.worker import card_commands


def child(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time; {code}"]


SLEEPER = child("time.sleep(60)")


def test_one_that_ends_takes_the_others_along_and_its_exit_code_counts() -> None:
    assert run_together([SLEEPER, child("sys.exit(3)"), SLEEPER]) == 3


def test_a_signal_goes_on_to_all_of_them() -> None:
    caller = child("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    assert run_together([SLEEPER, caller]) == 128 + 15


def test_one_that_a_signal_killed_counts_as_128_and_its_number() -> None:
    assert run_together([child("os.kill(os.getpid(), 9)")]) == 128 + 9


@pytest.fixture
def _two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that tells of two cards."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 0, GPU-a, NVIDIA A\necho 1, GPU-b, NVIDIA B\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_two_cards")
@pytest.mark.parametrize(("gpus", "cards"), [("all", [0, 1]), ("1", [1]), ("1,0,1", [0, 1])])
def test_each_chosen_card_has_a_worker_of_its_name(gpus: str, cards: list[int]) -> None:
    ends = [command[-5:] for command in card_commands(gpus)]
    assert ends == [["worker", "--device", f"cuda:{card}", "--name", f"gpu{card}"] for card in cards]


@pytest.mark.usefixtures("_two_cards")
def test_a_card_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DeviceError, match=r"--gpus 0,2, but .* 0 = NVIDIA A; 1 = NVIDIA B"):
        card_commands("0,2")
