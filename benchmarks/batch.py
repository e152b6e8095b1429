"""`herd batch`: its own cost beside a stand-in engine, its speed with the bundled model, what a kill costs.

    python -m benchmarks.batch [--write]

The command and its workers are processes of their own; memory is looked at five times a second. The peers
run the first rows of the same file, one after the other.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple

from redis import Redis

from benchmarks.batch_peer import THREADS
from benchmarks.conditions import conditions
from benchmarks.measured import ROOT, Report, Table, for_readers, run_command
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import child_environment
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

STAND_IN_ROWS, MODEL_ROWS, PEER_ROWS = 100_000, 2000, 200
MAX_TOKENS = 32
STAND_IN_WINDOW = 512

PROMPTS = ("Once upon a time, {} days ago", "One sunny morning {} birds", "There was a little village of {}")
PEERS = ("transformers", "llama-cpp-python")
_LOOK_S = 0.2

#: vLLM's `run-batch` reads all rows, raises at an invalid one, and writes the file once, at the end.
VLLM = ("vLLM `run-batch` (documented)", "not run here", "whole file", "ends the run", "all rows again")

COMMAND = (sys.executable, "-m", "llama_herd.cli", "batch", "in.jsonl", "-o", "out.jsonl", "--json")


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

    def report(self) -> Report:
        """The most of each, and the memory of Redis after each quarter of the time."""
        last = len(self.looks) - 1
        return {
            "command_peak_bytes": max(look.command_bytes for look in self.looks),
            "redis_peak_bytes": max(look.redis_bytes for look in self.looks),
            "redis_peak_keys": max(look.redis_keys for look in self.looks),
            "redis_quarter_bytes": [self.looks[last * n // 4].redis_bytes for n in range(1, 5)],
        }

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


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def write_rows(path: Path, num_rows: int) -> None:
    with path.open("w") as file:
        for n in range(num_rows):
            prompt = PROMPTS[n % len(PROMPTS)].format(n)
            row = {"custom_id": f"row-{n}", "prompt": prompt, "max_tokens": MAX_TOKENS}
            file.write(json.dumps(row | {"temperature": 0, "ignore_eos": True}) + "\n")


@contextmanager
def child(command: list[str], settings: Settings, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with (folder / "child.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=child_environment(settings), stdout=log, stderr=log, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def run_batch(url: str, folder: Path, *options: str) -> Report:
    """One run to its end: the summary, and the memory on the way."""
    env = child_environment(WorkerSettings(redis_url=url))
    with subprocess.Popen(
        [*COMMAND, *options], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        memory = Memory()
        with memory.watching(process.pid, url):
            output, _ = process.communicate()
    summary: Report = json.loads(output.splitlines()[-1])
    return summary | memory.report()


def with_stand_in(num_rows: int = STAND_IN_ROWS) -> Report:
    """Everything but a model."""
    with tempfile.TemporaryDirectory() as name, EmbeddedRedis() as server:
        folder = Path(name)
        write_rows(folder / "in.jsonl", num_rows)
        command = [sys.executable, "-m", "benchmarks.stand_in", server.url]
        with child(command, WorkerSettings(redis_url=server.url, dtype="float32"), folder):
            return run_batch(server.url, folder, "--window", str(STAND_IN_WINDOW))


@contextmanager
def bundled_worker(folder: Path) -> Iterator[tuple[str, int]]:
    """A Redis and a worker that has done a first job: the address and the worker's process."""
    with EmbeddedRedis() as server:
        settings = WorkerSettings(redis_url=server.url, model=BUNDLED_MODEL, dtype="float32")
        command = [sys.executable, "-m", "llama_herd.cli", "worker"]
        with child(command, settings, folder) as worker:
            warm = folder / "warm"
            warm.mkdir()
            write_rows(warm / "in.jsonl", 8)
            run_batch(server.url, warm)
            yield server.url, worker.pid


def with_bundled_model(folder: Path) -> Report:
    with bundled_worker(folder) as (url, pid):
        return run_batch(url, folder) | {"worker_bytes": rss_bytes(pid)}


def killed_at_half_time(folder: Path, whole_s: float) -> Report:
    """The same file: kill -9 when half of the time is over, and the same command at once."""
    write_rows(folder / "in.jsonl", MODEL_ROWS)
    with bundled_worker(folder) as (url, _):
        started = monotonic()
        env = child_environment(WorkerSettings(redis_url=url))
        with subprocess.Popen(COMMAND, cwd=folder, env=env, stdout=subprocess.DEVNULL) as process:
            sleep(whole_s / 2)
            process.kill()
        second = run_batch(url, folder)
        seconds = monotonic() - started
    names = [json.loads(line)["custom_id"] for line in (folder / "out.jsonl").open()]
    return {
        "seconds": seconds,
        "uninterrupted_s": whole_s,
        "lost_s": seconds - whole_s,
        "done_before": second["num_before"],
        "answers": len(names),
        "different_answers": len(set(names)),
    }


def peer(name: str, folder: Path) -> Report | None:
    """A peer's figures; None where it is not installed."""
    if find_spec(name.removesuffix("-python").replace("-", "_")) is None:
        return None
    command = [sys.executable, "-m", "benchmarks.batch_peer", name, str(folder / "in.jsonl"), str(PEER_ROWS)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    report: Report = json.loads(found.splitlines()[-1])
    return report | {"version": version(name)}


def measure() -> Report:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as torn:
        write_rows(Path(whole) / "in.jsonl", MODEL_ROWS)
        peers = {name: peer(name, Path(whole)) for name in PEERS}
        stand_in = with_stand_in()
        started = perf_counter()
        model = with_bundled_model(Path(whole))
        print(f"bundled model: {perf_counter() - started:.0f} s", file=sys.stderr)
        killed = killed_at_half_time(Path(torn), model["elapsed_s"])
    return {
        "benchmark": "batch",
        "stand_in": stand_in,
        "bundled_model": model,
        "killed": killed,
        "peers": peers,
        "conditions": conditions() | {"threads": THREADS},
    }


def tables(report: Report) -> Iterator[Table]:
    runs = {f"stand-in, {STAND_IN_ROWS:,} rows": report["stand_in"]}
    runs[f"bundled model, {MODEL_ROWS:,} rows"] = report["bundled_model"]
    yield Table(
        ("", "rows/s", "tokens/s", "command, MB", "Redis, MB", "after each quarter, MB", "most keys"),
        [
            (
                name,
                run["rows_per_s"],
                run["tokens_per_s"],
                run["command_peak_bytes"] / 1e6,
                run["redis_peak_bytes"] / 1e6,
                ", ".join(f"{num_bytes / 1e6:.1f}" for num_bytes in run["redis_quarter_bytes"]),
                run["redis_peak_keys"],
            )
            for name, run in runs.items()
        ],
    )
    yield against_peers(report)


def for_readme(report: Report) -> str:
    """The table of the peers."""
    return for_readers(report, [against_peers(report)])


def against_peers(report: Report) -> Table:
    """Rows a second, memory and what faults cost, beside those of the peers."""
    model, killed = report["bundled_model"], report["killed"]
    memory = (model["command_peak_bytes"] + model["worker_bytes"]) / 1e6
    loss = f"{killed['lost_s']:.1f} s"
    rows = [("`herd batch`", f"{model['rows_per_s']:.1f}", f"{memory:.0f}", "one error line", loss)]
    for name, found in report["peers"].items():
        if found is not None:
            speed, peak = f"{found['rows_per_s']:.1f}", f"{found['peak_bytes'] / 1e6:.0f}"
            rows.append(
                (f"{name} {found['version']} in a loop", speed, peak, "ends the loop", "all rows again")
            )
    kill = f"kill -9 at half of {killed['uninterrupted_s']:.0f} s costs"
    return Table(("", "rows/s", "memory, MB", "a bad line", kill), [*rows, VLLM])


def main() -> None:
    run_command(measure, tables, __doc__ or "", lambda report: for_readers(report, [against_peers(report)]))


if __name__ == "__main__":
    main()
