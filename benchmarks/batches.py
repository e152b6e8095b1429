"""Batches over HTTP beside `herd batch` on the same file, and what an upload takes.

    python -m benchmarks.batches [--write]

A stand-in answers at once, so this is what everything but a model costs. Gateway, command and stand-in are
processes of their own; memory is looked at five times a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from benchmarks.batch import Memory, run_batch, write_rows
from benchmarks.harness import Benchmark, main, timed_s
from benchmarks.meter import Meter, Spent
from benchmarks.processes import Gateway, gateway_process, stand_in_process
from benchmarks.report import Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from tests.batch_api import BatchApi

PATIENCE_S = 900.0


@dataclass(frozen=True)
class Plan:
    num_rows: tuple[int, ...] = (1_000, 100_000)
    upload_bytes: int = 200_000_000


@dataclass(frozen=True)
class Bench:
    """A Redis and a stand-in, and a folder with a file of rows."""

    url: str
    folder: Path
    num_rows: int

    def by_command(self) -> Row:
        """`herd batch` on the file."""
        with Redis.from_url(self.url) as redis:
            meter = Meter(redis)
            run = run_batch(self.url, self.folder)
            return self._row("herd batch", meter.so_far(), run.summary["elapsed_s"], run.memory)

    def over_http(self) -> Row:
        """The same file, from the upload to the last answer."""
        memory = Memory()
        with self.gateway() as (gateway, api), Redis.from_url(self.url) as redis:
            meter = Meter(redis)
            with memory.watching(gateway.pid, self.url):
                uploaded = api.upload((self.folder / "in.jsonl").read_bytes())
                batch_id = api.create(uploaded.json["id"]).json["id"]
                batch = api.end_of(batch_id, PATIENCE_S)
            if batch["request_counts"]["completed"] != self.num_rows:
                raise RuntimeError(f"the batch has ended with {batch['request_counts']}, {batch['errors']}")
            spent = meter.so_far()
            return self._row("HTTP", spent, spent.wall_s, memory)

    def upload(self, num_bytes: int) -> Row:
        """One file, sent from memory."""
        with self.gateway() as (gateway, api):
            content, memory, idle_bytes = bytes(num_bytes), Memory(), gateway.rss_bytes
            statuses: list[int] = []
            with memory.watching(gateway.pid, self.url):
                seconds = timed_s(lambda: statuses.append(api.upload(content).status))
        if statuses != [200]:
            raise RuntimeError(f"the upload was answered {statuses[0]}")
        more = (memory.most.command_bytes - idle_bytes) / 1e6
        return {"upload": "one file", "MB": num_bytes / 1e6, "s": seconds, "more memory, MB": more}

    @contextmanager
    def gateway(self) -> Iterator[tuple[Gateway, BatchApi]]:
        """One that takes files of any length."""
        room = {"HERD_GATEWAY_FILE_BYTES": str(1 << 34), "HERD_GATEWAY_BATCH_ROWS": str(10**7)}
        files = {"HERD_GATEWAY_FILES": str(self.folder / "files"), "HERD_GATEWAY_REQUEST_LOG": "off"}
        with gateway_process(self.url, **room, **files) as gateway:
            yield gateway, BatchApi(lambda: gateway.url)

    def _row(self, name: str, spent: Spent, seconds: float, memory: Memory) -> Row:
        return {
            "": f"{name}, {self.num_rows:,} rows",
            "rows/s": self.num_rows / seconds,
            "CPU of Redis a row, us": 1e6 * spent.redis_cpu_s / self.num_rows,
            "memory, MB": memory.most.command_bytes / 1e6,
            "Redis, MB": memory.most.redis_bytes / 1e6,
        }


@contextmanager
def bench(num_rows: int) -> Iterator[Bench]:
    with TemporaryDirectory() as name, EmbeddedRedis() as server, stand_in_process(server.url):
        write_rows(Path(name) / "in.jsonl", num_rows)
        yield Bench(server.url, Path(name), num_rows)


def measure(plan: Plan) -> Iterator[Table]:
    rows = []
    for num_rows in plan.num_rows:
        for way in (Bench.by_command, Bench.over_http):
            with bench(num_rows) as found:
                rows.append(way(found))
    yield Table(rows)
    with bench(1) as found:
        yield Table([found.upload(plan.upload_bytes)])


BENCHMARK = Benchmark("batches", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
