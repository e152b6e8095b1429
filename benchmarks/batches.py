"""Batches over HTTP beside `herd batch` on the same file, and what an upload takes.

    python -m benchmarks.batches [--write]

A stand-in answers at once, so this is what everything but a model costs. Gateway, command and stand-in are
processes of their own; memory is looked at five times a second.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from redis import Redis

from benchmarks.batch import Memory, child, rss_bytes, run_batch, write_rows
from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis, free_port
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.worker.settings import WorkerSettings
from tests.batch_api import BatchApi

PATIENCE_S = 900.0
UPLOAD_BYTES = 200_000_000


@dataclass(frozen=True)
class Plan:
    num_rows: tuple[int, ...] = (1_000, 100_000)
    upload_bytes: int = UPLOAD_BYTES


@dataclass(frozen=True)
class Bench:
    """A Redis and a stand-in, and a folder with a file of rows."""

    url: str
    folder: Path

    def redis_cpu_s(self) -> float:
        with Redis.from_url(self.url) as redis:
            found: Any = redis.info("cpu")
            return float(found["used_cpu_user"] + found["used_cpu_sys"])

    def by_command(self, num_rows: int) -> Report:
        """`herd batch` on the file."""
        before_s = self.redis_cpu_s()
        found = run_batch(self.url, self.folder)
        return self._run(num_rows, found["elapsed_s"], before_s, found)

    def over_http(self, num_rows: int) -> Report:
        """The same file, from the upload to the last answer."""
        with gateway(self.url, self.folder) as (process, api):
            idle_bytes = rss_bytes(process.pid)
            memory = Memory()
            before_s, started_s = self.redis_cpu_s(), perf_counter()
            with memory.watching(process.pid, self.url):
                uploaded = api.upload((self.folder / "in.jsonl").read_bytes())
                batch_id = api.create(uploaded.json["id"]).json["id"]
                batch = api.end_of(batch_id, PATIENCE_S)
            if batch["request_counts"]["completed"] != num_rows:
                raise RuntimeError(f"the batch has ended with {batch['request_counts']}, {batch['errors']}")
            found = self._run(num_rows, perf_counter() - started_s, before_s, memory.report())
            return found | {"idle_mb": idle_bytes / 1e6}

    def _run(self, num_rows: int, seconds: float, before_s: float, memory: Report) -> Report:
        return {
            "rows_per_s": num_rows / seconds,
            "redis_us_a_row": 1e6 * (self.redis_cpu_s() - before_s) / num_rows,
            "peak_mb": memory["command_peak_bytes"] / 1e6,
            "redis_peak_mb": memory["redis_peak_bytes"] / 1e6,
        }


@contextmanager
def bench(num_rows: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as name, EmbeddedRedis() as server:
        folder = Path(name)
        write_rows(folder / "in.jsonl", num_rows)
        command = [sys.executable, "-m", "benchmarks.stand_in", server.url]
        settings = WorkerSettings(redis_url=server.url, dtype="float32")
        with child(command, settings, folder), Client(server.url) as client:
            wait_until(client.workers, "the stand-in is up")
            yield Bench(server.url, folder)


@contextmanager
def gateway(url: str, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", BatchApi]]:
    """A gateway that is open and takes files of any length."""
    port = free_port()
    settings = GatewaySettings(
        redis_url=url,
        gateway_port=port,
        gateway_open=True,
        gateway_files=str(folder / "files"),
        gateway_file_bytes=1 << 34,
        gateway_batch_rows=10**7,
        gateway_request_log="off",
    )
    home = folder / "gateway"
    home.mkdir()
    with child([sys.executable, "-m", "llama_herd.cli", "gateway"], settings, home) as process:
        api = BatchApi(lambda: f"http://127.0.0.1:{port}")
        wait_until(lambda: _answers(api), "the gateway is up")
        yield process, api


def _answers(api: BatchApi) -> bool:
    try:
        return api.ask("GET", "/health/live").status == 200
    except OSError:
        return False


def upload(num_bytes: int) -> Report:
    """One file, sent from memory."""
    with bench(1) as found, gateway(found.url, found.folder) as (process, api):
        content = bytes(num_bytes)
        memory, idle_bytes = Memory(), rss_bytes(process.pid)
        with memory.watching(process.pid, found.url):
            started_s = perf_counter()
            answer = api.upload(content)
            seconds = perf_counter() - started_s
        if answer.status != 200:
            raise RuntimeError(f"the upload was answered {answer.status}: {answer.raw!r}")
        more_mb = (memory.report()["command_peak_bytes"] - idle_bytes) / 1e6
        return {"mb": num_bytes / 1e6, "seconds": seconds, "more_mb": more_mb}


def measure(plan: Plan) -> Report:
    runs = []
    for num_rows in plan.num_rows:
        with bench(num_rows) as found:
            command = found.by_command(num_rows)
        with bench(num_rows) as found:
            http = found.over_http(num_rows)
        runs.append({"num_rows": num_rows, "herd batch": command, "HTTP": http})
    return {
        "benchmark": "batches",
        "runs": runs,
        "upload": upload(plan.upload_bytes),
        "conditions": conditions(),
    }


def tables(report: Report) -> Iterator[Table]:
    rows = [
        (
            f"{name}, {run['num_rows']:,} rows",
            run[name]["rows_per_s"],
            run[name]["redis_us_a_row"],
            run[name]["peak_mb"],
            run[name]["redis_peak_mb"],
        )
        for run in report["runs"]
        for name in ("herd batch", "HTTP")
    ]
    yield Table(("", "rows/s", "CPU of Redis a row, us", "memory, MB", "Redis, MB"), rows)
    found = report["upload"]
    head = ("upload", "MB", "s", "more memory, MB")
    yield Table(head, [("one file", found["mb"], found["seconds"], found["more_mb"])])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
