"""Processes beside this one, each ended with its block."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.report import ROOT
from llama_herd.tasks.client.client import Client
from tests.chaos.harness.patience import wait_until


@contextmanager
def process(*arguments: str) -> Iterator[None]:
    """This Python with these arguments."""
    found = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        found.kill()
        found.wait()


@contextmanager
def stand_in_process(redis_url: str) -> Iterator[None]:
    """A worker without a model that has reported."""
    with process("-m", "benchmarks.stand_in", redis_url), Client(redis_url) as client:
        wait_until(client.workers, "the stand-in is up")
        yield
