"""How long the worst inputs that are let through hold up a gateway, and what memory they take.

    python -m benchmarks.hostile_input [--write]

A gateway process, a Redis, and a worker without a model whose answers are as long as a job allows. Each
entry, which are all routes of the application and what a gateway reads besides, gets its worst inputs one
after the other. Meanwhile another process asks for `/health/live` all the time: the longest wait is the
longest pause of the gateway's loop; the first row is without anything beside. Memory is the most that the
process took meanwhile, above what it took before.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Benchmark, main
from benchmarks.processes import process
from benchmarks.report import Row, Table
from benchmarks.worst_inputs import Inputs, Stage, entries
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.chaos.harness.patience import wait_until
from tests.cli.gateway_process import GatewayProcess

SPAWNED = get_context("spawn")
SERVING = WorkerStatus(name="w", state="ready", model="tales", device="none", slots=1)


def beat(url: str, longest_s: Any) -> None:
    """Ask a gateway whether it lives, all the time, and keep the longest wait."""
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=120)
    while True:
        started_s = perf_counter()
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        longest_s.value = max(longest_s.value, perf_counter() - started_s)
        sleep(0.002)


@contextmanager
def pulse(url: str) -> Iterator[Any]:
    """The longest wait so far, which may be set to 0; measured in a process that does nothing else."""
    longest_s = SPAWNED.Value("d", 0.0)
    beating = SPAWNED.Process(target=beat, args=(url, longest_s), daemon=True)
    beating.start()
    try:
        wait_until(lambda: longest_s.value, "the first answer has come")
        yield longest_s
    finally:
        beating.kill()
        beating.join()


@dataclass(frozen=True)
class Plan:
    only: str = ""  # entries whose names have this


@contextmanager
def stage() -> Iterator[Stage]:
    variables = {"HERD_GATEWAY_WEBHOOK_PRIVATE": "true", "HERD_GATEWAY_REQUEST_LOG": "off"}
    with ExitStack() as open_ones:
        server = open_ones.enter_context(EmbeddedRedis())
        folder = Path(open_ones.enter_context(TemporaryDirectory()))
        redis = connect(server.url)
        open_ones.callback(redis.close)
        run_call(redis, Reports().report_worker(SERVING))
        open_ones.enter_context(process("-m", "benchmarks.full_answers", server.url))
        gateway = open_ones.enter_context(GatewayProcess(server.url, folder / "log", **variables))
        yield Stage(gateway.url, gateway.process.pid, redis, folder)


def measure(plan: Plan) -> Iterator[Table]:
    inputs = {"nothing": {"nothing": lambda _: sleep(5.0)}, **entries()}
    with stage() as at, pulse(at.url) as longest_s:
        rows = [_row(at, name, found, longest_s) for name, found in inputs.items() if plan.only in name]
    yield Table(rows, "The longest pause of a gateway's loop, and its memory above idle, by its worst input")


def _row(at: Stage, name: str, inputs: Inputs, longest_s: Any) -> Row:
    """The worst of an entry's inputs."""
    pauses, memories = {}, {}
    for one, act in inputs.items():
        before_kib = at.memory_kib
        at.forget_peak()
        longest_s.value = 0.0
        act(at)
        pauses[one], memories[one] = longest_s.value, max(0, at.peak_kib - before_kib) / 1024
        if os.environ.get("EACH"):
            print(f"{name} / {one}: {pauses[one]:.3f} s, {memories[one]:.1f} MiB", flush=True)
    slowest, largest = max(pauses, key=pauses.__getitem__), max(memories, key=memories.__getitem__)
    return {
        "entry": f"`{name}`" if " /" in name else name,
        "inputs": len(inputs),
        "pause, ms": 1000 * pauses[slowest],
        "by": slowest,
        "MiB": memories[largest],
        "by ": largest,
    }


HOSTILE = Benchmark("hostile_input", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(HOSTILE)
