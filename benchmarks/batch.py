"""`herd batch`: its own cost beside a stand-in engine, its speed with the bundled model, what a kill costs.

    python -m benchmarks.batch [--write]

The command and its workers are processes of their own; memory is looked at five times a second. The peers
run the first rows of the same file, one after the other.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

from redis import Redis

from benchmarks.batch_peer import THREADS
from benchmarks.conditions import installed
from benchmarks.harness import Benchmark, main
from benchmarks.jobs import greedy
from benchmarks.process_figures import rss_bytes
from benchmarks.processes import stand_in_process
from benchmarks.report import ROOT, Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import child_environment
from llama_herd.worker.settings import WorkerSettings

MAX_TOKENS = 32
PROMPTS = ("Once upon a time, {} days ago", "One sunny morning {} birds", "There was a little village of {}")
PEERS = ("transformers", "llama-cpp-python")
_LOOK_S = 0.2

#: The table beside the peers'. vLLM's `run-batch` reads all rows, raises at an invalid one, and writes the
#: file once, at the end.
HEAD = ("", "rows/s", "memory, MB", "a bad line")
VLLM = ("vLLM `run-batch` (documented)", "not run here", "whole file", "ends the run", "all rows again")

COMMAND = (sys.executable, "-m", "llama_herd.cli", "batch", "in.jsonl", "-o", "out.jsonl", "--json")


@dataclass(frozen=True)
class Plan:
    stand_in_rows: int = 100_000
    model_rows: int = 2000
    peer_rows: int = 200


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


@contextmanager
def bundled_worker() -> Iterator[Queue]:
    """A warm worker of the bundled model, with as many rows as it takes by default."""
    with warm_worker(WorkerSettings().slots, greedy(4)) as queue:
        yield queue


def killed_at_half_time(num_rows: int, whole_s: float) -> float:
    """Seconds of the same file: kill -9 when half of the time is over, and the same command at once."""
    with TemporaryDirectory() as name, bundled_worker() as queue:
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


def peer_row(name: str, path: Path, num_rows: int) -> Iterator[tuple[str, ...]]:
    """A peer's figures; none where it is not installed."""
    if find_spec(name.removesuffix("-python").replace("-", "_")) is None:
        return
    arguments = [sys.executable, "-m", "benchmarks.batch_peer", name, str(path), str(num_rows)]
    found = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    speed = json.loads(found.splitlines()[-1])
    figures = f"{speed['rows_per_s']:.1f}", f"{speed['peak_bytes'] / 1e6:.0f}"
    yield f"{name} {installed(name)} in a loop", *figures, "ends the loop", "all rows again"


def measure(plan: Plan) -> Iterator[Table]:
    stand_in = with_stand_in(plan.stand_in_rows).row(f"stand-in, {plan.stand_in_rows:,} rows")
    with TemporaryDirectory() as name:
        path = Path(name) / "in.jsonl"
        write_rows(path, plan.model_rows)
        peers = [row for one in PEERS for row in peer_row(one, path, plan.peer_rows)]
        with bundled_worker() as queue:
            model = run_batch(queue.url, path.parent)
            memory = model.memory.most.command_bytes + rss_bytes(queue.pid)
    yield Table([stand_in, model.row(f"bundled model, {plan.model_rows:,} rows")])
    whole_s = model.summary["elapsed_s"]
    lost = f"{killed_at_half_time(plan.model_rows, whole_s) - whole_s:.1f} s"
    speed = f"{model.summary['rows_per_s']:.1f}"
    ours = ("`herd batch`", speed, f"{memory / 1e6:.0f}", "one error line", lost)
    head = (*HEAD, f"kill -9 at half of {whole_s:.0f} s costs")
    yield Table([dict(zip(head, row, strict=True)) for row in (ours, *peers, VLLM)])


BENCHMARK = Benchmark("batch", __doc__, Plan(), measure, threads=THREADS)

if __name__ == "__main__":
    main(BENCHMARK)
