"""What ten thousand readers cost: by the gateway, and by one `AsyncClient`.

    python -m benchmarks.readers [--write]

Each reader follows a job of its own, first while all jobs wait, then while they get events at a steady rate,
in lots as a worker's steps bring them. The readers of the gateway's streams are a process of their own. CPU
time is that of the gateway, or of the client's process.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from time import perf_counter, sleep, time
from typing import Any

import redis

from benchmarks.conditions import conditions
from benchmarks.gateway import ROWS, Gateway, Herd, Readers, gateway_process
from benchmarks.measured import Report, Table, run_command
from benchmarks.stopwatch import percentiles_ms
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.events import Started, Token

#: More than the readers, so that it is they who say how many connections they take.
MAX_CLIENTS = 15_000
#: How long ten thousand streams may take to begin.
OPEN_S = 300.0


@dataclass(frozen=True)
class Plan:
    streams: tuple[int, ...] = (10_000,)
    events_per_s: int = 2000
    settle_s: float = 5.0
    waiting_s: float = 10.0
    running_s: float = 15.0


class Load:
    """What Redis and a process do in a time: a reading at its beginning, and one at its end."""

    def __init__(self, server: redis.Redis, process: Gateway) -> None:
        self._server = server
        self._process = process
        self._began = self._reading()

    def _reading(self) -> tuple[float, float, float, float]:
        info: Any = self._server.info()
        redis_s = info["used_cpu_user"] + info["used_cpu_sys"]
        return perf_counter(), float(info["total_commands_processed"]), redis_s, self._process.cpu_s

    def end(self) -> dict[str, float]:
        """Commands a second, those of scripts included; shares of a core of Redis and of the process."""
        took_s, commands, redis_s, process_s = (
            now - then for now, then in zip(self._reading(), self._began, strict=True)
        )
        return {
            "commands/s": round(commands / took_s),
            "Redis, share of a core": round(redis_s / took_s, 3),
            "share of a core": round(process_s / took_s, 3),
            "cpu_s": process_s,
        }


@contextmanager
def gateway_readers(url: str, job_ids: list[str]) -> Iterator[tuple[Gateway, Readers]]:
    """Readers at a gateway, and the gateway."""
    room = {"HERD_GATEWAY_MAX_STREAMS": "20000", "HERD_GATEWAY_MAX_TENANT_STREAMS": "20000"}
    with gateway_process(url, **room) as gateway, Readers.at([gateway], job_ids) as readers:
        yield gateway, readers


@contextmanager
def client_readers(url: str, job_ids: list[str]) -> Iterator[tuple[Gateway, Readers]]:
    """Readers of one client, and its process."""
    with Readers(["benchmarks.readers", "--follow", url], job_ids) as readers:
        yield Gateway(url, readers.pid), readers


WAYS = {"gateway": gateway_readers, "AsyncClient": client_readers}


def read_by(way: str, num: int, plan: Plan) -> dict[str, Any]:
    """`num` readers, while their jobs wait and while they run."""
    with EmbeddedRedis() as embedded, ExitStack() as stack:
        server: Any = redis.Redis.from_url(embedded.url)
        server.config_set("maxclients", MAX_CLIENTS)
        herd = Herd(embedded.url, num)
        others = server.info()["connected_clients"]
        process, readers = stack.enter_context(WAYS[way](embedded.url, herd.job_ids))
        wait_until(lambda: server.info()["pubsub_channels"] >= num, "all streams are open", OPEN_S)
        sleep(plan.settle_s)
        connections = server.info()["connected_clients"] - others
        waiting = Load(server, process)
        sleep(plan.waiting_s)
        waited = waiting.end()
        herd.begin()
        readers.wait_until_open()
        running, num_lots = Load(server, process), 0
        until_s = perf_counter() + plan.running_s
        while perf_counter() < until_s:
            began_s = perf_counter()
            herd.say_to(num_lots)
            num_lots += 1
            sleep(max(0.0, ROWS / plan.events_per_s - (perf_counter() - began_s)))
        ran = running.end()
        rss_bytes = process.rss_bytes
        herd.end()
        found = readers.finish()
    num_events = num_lots * ROWS
    lags = percentiles_ms(found["lags"])
    return {
        "by": way,
        "streams": num,
        "connections": connections,
        "waiting: commands/s": waited["commands/s"],
        "Redis, share of a core": waited["Redis, share of a core"],
        "share of a core": waited["share of a core"],
        "events/s": round(num_events / plan.running_s),
        "CPU us an event": round(1e6 * ran["cpu_s"] / num_events),
        "Redis us an event": round(1e6 * ran["Redis, share of a core"] * plan.running_s / num_events),
        "lag p50, ms": lags["p50"],
        "lag p99, ms": lags["p99"],
        "MB": round(rss_bytes / 1024**2),
        "events lost": num_events + 2 * num - found["num_events"],
    }


class Following:
    """All streams of one client. Lags are in the order in which the events came."""

    def __init__(self, url: str, job_ids: list[str]) -> None:
        self._client = AsyncClient(url)
        self._job_ids = job_ids
        self._lags: list[float] = []
        self._num_events = self._begun = 0

    async def run(self) -> None:
        """Read every stream to its end."""
        async with self._client:
            await asyncio.gather(*map(self._follow, self._job_ids))
        print(json.dumps({"num_events": self._num_events, "lags": self._lags}), flush=True)

    async def _follow(self, job_id: str) -> None:
        async for event in self._client.stream(job_id):
            self._num_events += 1
            if isinstance(event, Token):
                self._lags.append(time() - float(event.text))
            elif isinstance(event, Started):
                self._begun += 1
                if self._begun == len(self._job_ids):
                    print("open", flush=True)


def measure(plan: Plan) -> Report:
    runs = [read_by(way, num, plan) for num in plan.streams for way in WAYS]
    return {
        "benchmark": "readers",
        "plan": asdict(plan),
        "conditions": conditions() | {"hiredis": version("hiredis")},
        "runs": runs,
    }


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])


if __name__ == "__main__":
    if "--follow" in sys.argv:
        asyncio.run(Following(sys.argv[2], sys.stdin.read().split()).run())
    else:
        run_command(lambda: measure(Plan()), tables, __doc__ or "")
