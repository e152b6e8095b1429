"""Children that live and end together."""

import sys

from llama_herd.worker.cli.children import run_together


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
