"""Processes beside this one, each ended with its block: a gateway, a worker without a model, readers."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

from benchmarks.process_figures import cpu_s, rss_bytes
from benchmarks.report import ROOT
from llama_herd.chaos.patience import wait_until
from llama_herd.tasks.client.client import Client


@contextmanager
def process(*arguments: str, log: int | None = None, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """This Python with these arguments, and what it reads and prints; `variables` are of its environment."""
    pipe = subprocess.PIPE
    command, env = [sys.executable, *arguments], {**os.environ, **variables}
    found = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=log, text=True, bufsize=1
    )
    try:
        yield found
    finally:
        found.kill()
        found.communicate()


@contextmanager
def stand_in_process(redis_url: str) -> Iterator[None]:
    """A worker without a model that has reported."""
    with process("-m", "benchmarks.stand_in", redis_url), Client(redis_url) as client:
        wait_until(client.workers, "the stand-in is up")
        yield


@dataclass(frozen=True)
class Gateway:
    """A gateway process, or another that reads for many."""

    url: str
    pid: int

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def connect(self) -> HTTPConnection:
        place = urlsplit(self.url)
        return HTTPConnection(place.hostname or "", place.port, timeout=60)


@contextmanager
def gateway_process(redis_url: str, **variables: str) -> Iterator[Gateway]:
    """One that is open to all and up."""
    own = {"HERD_REDIS_URL": redis_url, "HERD_GATEWAY_PORT": "0", "HERD_GATEWAY_OPEN": "true"}
    with (
        tempfile.TemporaryFile("w+") as log,
        process("-m", "llama_herd.cli", "gateway", log=log.fileno(), **own, **variables) as found,
    ):

        def address() -> re.Match[str] | None:
            said = os.pread(log.fileno(), 1 << 16, 0).decode(errors="replace")
            return re.search(r"gateway at (http://[\d.:]+)", said)

        wait_until(lambda: address() or found.poll() is not None, "the gateway is up")
        match = address()
        if match is None:
            raise RuntimeError("the gateway ended before it was up")
        yield Gateway(match[1], found.pid)
