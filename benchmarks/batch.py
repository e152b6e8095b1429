"""`herd batch`: its own cost beside a stand-in engine, its speed with the bundled model, what a kill costs.

    python -m benchmarks.batch [--write]

The command and its workers are processes of their own; memory is looked at five times a second.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.jobs import greedy
from benchmarks.process_figures import rss_bytes
from benchmarks.processes import stand_in_process
from benchmarks.report import Row, Table
from benchmarks.warm_worker import warm_worker
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import child_environment
from llama_herd.worker.settings import WorkerSettings

MAX_TOKENS = 32
PROMPTS = ("Once upon a time, {} days ago", "One sunny morning {} birds", "There was a little village of {}")
_LOOK_S = 0.2
#: Rows and threads of a worker by default, which leaves one core for its other threads.
SLOTS, THREADS = WorkerSettings().slots, max(1, len(os.sched_getaffinity(0)) - 1)

COMMAND = (sys.executable, "-m", "llama_herd", "batch", "in.jsonl", "-o", "out.jsonl", "--json")


@dataclass(frozen=True)
class Plan:
    stand_in_rows: int = 100_000
    model_rows: int = 2000


class Look(NamedTuple):
    """Memory of a process and of a Redis at one moment."""

    command_bytes: int
    redis_bytes: int
    redis_keys: int


@dataclass
class Memory:
    """Memory of both while the block lasts."""

    looks: list[Look] = field(default_factory=list)
    _is_over: Event = field(default_factory=Event)

    def look(self, pid: int, redis: Any) -> None:
        """Look at once and at the end, too, however soon that comes."""
        is_over = False
        while True:
            self.looks.append(Look(rss_bytes(pid), redis.info("memory")["used_memory"], redis.dbsize()))
            if is_over:
                return
            is_over = self._is_over.wait(_LOOK_S)

    @contextmanager
    def watching(self, pid: int, url: str) -> Iterator[None]:
        with Redis.from_url(url) as redis:
            thread = Thread(target=self.look, args=(pid, redis))
            thread.start()
            try:
                yield
            finally:
                self._is_over.set()
                thread.join()

    @property
    def most(self) -> Look:
        return Look(*map(max, zip(*self.looks, strict=True)))

    @property
    def redis_quarters(self) -> list[int]:
        """Of Redis after each quarter of the time."""
        last = len(self.looks) - 1
        return [self.looks[last * quarter // 4].redis_bytes for quarter in range(1, 5)]


@dataclass(frozen=True)
class Run:
    """One run of the command to its end: what it says of itself, and the memory on the way."""

    summary: dict[str, Any]
    memory: Memory

    def row(self, name: str) -> Row:
        most = self.memory.most
        return {
            "": name,
            "rows/s": self.summary["rows_per_s"],
            "tokens/s": self.summary["tokens_per_s"],
            "command, MB": most.command_bytes / 1e6,
            "Redis, MB": most.redis_bytes / 1e6,
            "after each quarter, MB": ", ".join(f"{one / 1e6:.1f}" for one in self.memory.redis_quarters),
            "most keys": most.redis_keys,
        }


def write_rows(path: Path, num_rows: int) -> None:
    with path.open("w") as file:
        for n in range(num_rows):
            prompt = PROMPTS[n % len(PROMPTS)].format(n)
            row = {"custom_id": f"row-{n}", "prompt": prompt, "max_tokens": MAX_TOKENS}
            file.write(json.dumps(row | {"temperature": 0, "ignore_eos": True}) + "\n")


def command(url: str, folder: Path, *options: str) -> "subprocess.Popen[str]":
    """`herd batch` on the file of a folder."""
    env = child_environment(WorkerSettings(redis_url=url))
    return subprocess.Popen([*COMMAND, *options], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def run_batch(url: str, folder: Path, *options: str) -> Run:
    with command(url, folder, *options) as process:
        memory = Memory()
        with memory.watching(process.pid, url):
            output, _ = process.communicate()
    return Run(json.loads(output.splitlines()[-1]), memory)


def with_stand_in(num_rows: int) -> Run:
    """Everything but a model."""
    with TemporaryDirectory() as name, EmbeddedRedis() as server:
        write_rows(Path(name) / "in.jsonl", num_rows)
        with stand_in_process(server.url):
            return run_batch(server.url, Path(name), "--window", "512")


def killed_at_half_time(num_rows: int, whole_s: float) -> float:
    """Seconds of the same file: kill -9 when half of the time is over, and the same command at once."""
    with TemporaryDirectory() as name, warm_worker(SLOTS, greedy(4)) as queue:
        folder = Path(name)
        write_rows(folder / "in.jsonl", num_rows)
        started = monotonic()
        with command(queue.url, folder) as process:
            sleep(whole_s / 2)
            process.kill()
        run_batch(queue.url, folder)
        seconds = monotonic() - started
        names = {json.loads(line)["custom_id"] for line in (folder / "out.jsonl").open()}
    if len(names) != num_rows:
        raise RuntimeError(f"{len(names)} of {num_rows} rows have an answer")
    return seconds


def measure(plan: Plan) -> Iterator[Table]:
    stand_in = with_stand_in(plan.stand_in_rows).row(f"stand-in, {plan.stand_in_rows:,} rows")
    name = f"bundled model, {plan.model_rows:,} rows"
    with TemporaryDirectory() as folder, warm_worker(SLOTS, greedy(4)) as queue:
        write_rows(Path(folder) / "in.jsonl", plan.model_rows)
        model = run_batch(queue.url, Path(folder))
        memory_bytes = model.memory.most.command_bytes + rss_bytes(queue.pid)
    yield Table([stand_in, model.row(name)])
    whole_s = model.summary["elapsed_s"]
    killed: Row = {
        "": name,
        "command and worker, MB": memory_bytes / 1e6,
        "s without a kill": whole_s,
        "s with it": killed_at_half_time(plan.model_rows, whole_s),
    }
    yield Table([killed], "Killed by kill -9 at half time, and started again")


BENCHMARK = Benchmark("batch", __doc__, Plan(), measure, threads=THREADS)

if __name__ == "__main__":
    main(BENCHMARK)
