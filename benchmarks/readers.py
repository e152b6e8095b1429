"""What ten thousand readers cost: by the gateway, and by one `AsyncClient`.

    python -m benchmarks.readers [--write]

Each reader follows a job of its own, first while all jobs wait, then while they get events at a steady rate,
in lots as a worker's steps bring them. The readers of the gateway's streams are a process of their own. CPU
time is that of the gateway, or of the client's process.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any

import redis

from benchmarks.harness import Benchmark, main, percentiles_ms, timed_s
from benchmarks.meter import Meter
from benchmarks.processes import Gateway, gateway_process
from benchmarks.report import Row, Table
from benchmarks.streams import ROWS, Herd, Readers, gateway_readers, readers
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis

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


@contextmanager
def by_gateway(url: str, job_ids: list[str]) -> Iterator[tuple[Gateway, Readers]]:
    """Readers at a gateway, and the gateway."""
    room = {"HERD_GATEWAY_MAX_STREAMS": "20000", "HERD_GATEWAY_MAX_TENANT_STREAMS": "20000"}
    with gateway_process(url, **room) as gateway, gateway_readers([gateway], job_ids) as found:
        yield gateway, found


@contextmanager
def by_client(url: str, job_ids: list[str]) -> Iterator[tuple[Gateway, Readers]]:
    """Readers of one client, and its process."""
    with readers(job_ids, "client", url) as found:
        yield Gateway(url, found.process.pid), found


WAYS = {"gateway": by_gateway, "AsyncClient": by_client}


def read_by(way: str, num: int, plan: Plan) -> Row:
    """`num` readers, while their jobs wait and while they run."""
    with EmbeddedRedis() as embedded, ExitStack() as stack:
        server: Any = redis.Redis.from_url(embedded.url)
        server.config_set("maxclients", MAX_CLIENTS)
        herd = Herd(embedded.url, num)
        others = server.info()["connected_clients"]
        process, found = stack.enter_context(WAYS[way](embedded.url, herd.job_ids))
        wait_until(lambda: server.info()["pubsub_channels"] >= num, "all streams are open", OPEN_S)
        sleep(plan.settle_s)
        connections = server.info()["connected_clients"] - others
        waited = Meter(server, process.pid).spent(lambda: sleep(plan.waiting_s))
        herd.begin()
        found.wait_until_open()
        meter, num_lots, until_s = Meter(server, process.pid), 0, perf_counter() + plan.running_s
        while perf_counter() < until_s:
            took_s = timed_s(partial(herd.say_to, num_lots))
            sleep(max(0.0, ROWS / plan.events_per_s - took_s))
            num_lots += 1
        ran, rss_bytes = meter.so_far(), process.rss_bytes
        herd.end()
        read = found.finish()
    num_events, lags = num_lots * ROWS, percentiles_ms(read["lags"])
    return {
        "by": way,
        "streams": num,
        "connections": connections,
        "waiting: commands/s": round(waited.commands / waited.wall_s),
        "Redis, share of a core": waited.redis_cpu_s / waited.wall_s,
        "share of a core": waited.process_cpu_s / waited.wall_s,
        "events/s": round(num_events / plan.running_s),
        "CPU us an event": round(1e6 * ran.process_cpu_s / num_events),
        "Redis us an event": round(1e6 * ran.redis_cpu_s / num_events),
        "lag p50, ms": lags["p50"],
        "lag p99, ms": lags["p99"],
        "MB": round(rss_bytes / 1024**2),
        "events lost": herd.num_events - read["num_events"],
    }


def measure(plan: Plan) -> Iterator[Table]:
    yield Table([read_by(way, num, plan) for num in plan.streams for way in WAYS])


BENCHMARK = Benchmark("readers", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
