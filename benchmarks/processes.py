"""Processes beside this one, each ended with its block."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

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


class Server(NamedTuple):
    url: str
    pid: int


@contextmanager
def http_server(*arguments: str) -> Iterator[Server]:
    """This Python with these arguments, which listens at this machine and prints its port."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        try:
            yield Server(f"http://127.0.0.1:{found.stdout.readline().strip()}", found.pid)
        finally:
            found.kill()


@contextmanager
def fake_worker(redis_url: str, model: str, slots: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker without a model of so many rows. options: of `herd fake-worker`."""
    settings = {"HERD_REDIS_URL": redis_url, "HERD_SLOTS": str(slots), "HERD_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "llama_herd", "fake-worker", "--model", model, *options]
    with subprocess.Popen(command, env={**os.environ, **settings}) as found:
        try:
            yield found
        finally:
            found.terminate()


@contextmanager
def stand_in_process(redis_url: str) -> Iterator[None]:
    """A worker without a model that has reported."""
    with process("-m", "benchmarks.stand_in", redis_url), Client(redis_url) as client:
        wait_until(client.workers, "the stand-in is up")
        yield
