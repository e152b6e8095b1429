"""What a fleet costs one Redis: simulated workers, idle and busy, and what follows for more of them.

    python -m benchmarks.fleet [--write]
    python -m benchmarks.fleet --workers 10 200 --tenants 10 --rows 4 --tokens-per-s 20 --readers 9

Ledger, Redis, the threads of each worker and the readers are real, the models are not
(`benchmarks.simulated_workers`). Commands are those of clients, and not those that scripts run. What one
Redis carries is reckoned from the slopes: what one more worker costs, and one more event.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Self

from redis import Redis

from benchmarks.harness import Benchmark, main, percentile
from benchmarks.processes import process
from benchmarks.report import Table
from benchmarks.simulated_workers import Plan as Workers
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.events import Token
from llama_herd.tasks.ledger.keys import Keys

#: Processes of workers at most, and workers for which one more is worth its start.
NUM_PROCESSES, WORKERS_A_PROCESS = 2, 25
#: Commands that no script of ours runs: those of clients.
OF_CLIENTS = ("evalsha", "eval", "brpop", "info", "ping", "subscribe", "script|exists", "script|load")
#: A Redis should be busy for no more than this share of its time.
SHARE = 0.5
#: On paper: the rows of a worker, what each draws, and after how many ms each has an event.
PAPER_ROWS, PAPER_TOKENS_PER_S = 32, 50.0
PAPER_FLUSH_MS = {"each half second": 500.0, "each 50 ms": 50.0, "for each token": 1000 / PAPER_TOKENS_PER_S}


#: What a row measures, by the name of its column.
Figures = dict[str, float]


@dataclass(frozen=True)
class Plan:
    workers: tuple[int, ...] = (10, 50, 200, 500)
    tenants: tuple[int, ...] = (1, 10, 100)
    #: Of the workers of many tenants.
    num_of_many: int = 10
    #: Of the busy workers, each with so many rows.
    busy: tuple[int, ...] = (10, 50, 200)
    rows: int = 32
    #: What each row draws, and how long its tokens are gathered.
    tokens_per_s: float = 4.0
    flush_ms: int = 500
    #: Of those that have events often, which are fewer: two cores draw no more tokens.
    often: tuple[int, ...] = (10,)
    often_tokens_per_s: float = 20.0
    often_flush_ms: int = 50
    #: Most streams of busy workers that are read.
    readers: int = 200
    seconds: float = 10.0
    #: After all have reported, before they are measured.
    calm_s: float = 5.0


class Readers:
    """Streams of running jobs, read by one client for each tenant. How late each event comes is noted."""

    def __init__(self, url: str, job_ids: dict[str, list[str]]) -> None:
        self._url = url
        self._job_ids = job_ids
        self.lags_s: list[float] = []
        self._is_over = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._run()))

    @classmethod
    def of(cls, redis: Any, url: str, tenants: Sequence[str], most: int) -> Self:
        """Of as many jobs as there are, `most` at most."""
        each = -(-most // len(tenants))
        ids = {tenant: redis.zrange(Keys(tenant).key("leases"), 0, each - 1) for tenant in tenants if each}
        return cls(url, {tenant: [job_id.decode() for job_id in found] for tenant, found in ids.items()})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._read(tenant, ids)) for tenant, ids in self._job_ids.items()]
        await asyncio.to_thread(self._is_over.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, tenant: str, job_ids: Sequence[str]) -> None:
        async with AsyncClient(self._url, tenant=tenant) as client:
            await asyncio.gather(*(self._follow(client, job_id) for job_id in job_ids))

    async def _follow(self, client: AsyncClient, job_id: str) -> None:
        async for event in client.stream(job_id):
            if isinstance(event, Token):
                self.lags_s.append(monotonic() - float(event.text.split()[-1]))


@contextmanager
def fleet(workers: Workers) -> Iterator[None]:
    """All workers, in some processes."""
    num_processes = min(NUM_PROCESSES, max(1, workers.num // WORKERS_A_PROCESS))
    num = max(1, -(-workers.num // num_processes))
    with ExitStack() as stack:
        parts = [
            replace(workers, first=first, num=min(num, workers.num - first))
            for first in range(0, workers.num, num)
        ]
        started = [
            stack.enter_context(process("-m", "benchmarks.simulated_workers", json.dumps(asdict(part))))
            for part in parts
        ]
        for one in started:
            if one.stdout is None or one.stdout.readline() != "up\n":
                raise RuntimeError("the simulated workers did not start")
        yield


def costs(workers: Workers, plan: Plan) -> Figures:
    """What Redis does for these workers, and for who reads their jobs, in a second, once all are up."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis, ExitStack() as stack:
        workers = replace(workers, url=server.url)
        stack.enter_context(fleet(workers))
        tenants = [own.tenant for own in workers.settings.by_queue.values()]
        _wait_until_up(redis, workers, tenants)
        num_readers = plan.readers if workers.rows and workers.num else 0
        readers = stack.enter_context(Readers.of(redis, server.url, tenants, num_readers))
        sleep(plan.calm_s)  # what begins with a start is over
        before, began_s, num_lags = _look(redis), monotonic(), len(readers.lags_s)
        sleep(plan.seconds)
        after, took_s = _look(redis), monotonic() - began_s
        lags = [1000 * one for one in readers.lags_s[num_lags:]]
        connections = float(redis.info("clients")["connected_clients"])
    found = {name: (after[name] - before[name]) / took_s for name in before}
    if len(lags) > 1:
        found |= {"lag_p50_ms": percentile(lags, 50), "lag_p99_ms": percentile(lags, 99)}
    return found | {"connections": connections}


def _wait_until_up(redis: Any, workers: Workers, tenants: Sequence[str]) -> None:
    """Wait until all have reported."""
    num = workers.num if workers.has_parts else 0
    while any(redis.zcard(Keys(tenant).key("workers")) < num for tenant in tenants):
        sleep(0.1)


def _look(redis: Any) -> Figures:
    used, stats = redis.info("cpu"), redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
    return {
        "cpu_ms": 1000 * (used["used_cpu_user"] + used["used_cpu_sys"]),
        "commands": sum(calls.get(name, 0) for name in OF_CLIENTS),
        "events": calls.get("publish", 0),
    }


def measure(plan: Plan) -> Iterator[Table]:
    none = Workers("", 0)
    nobody = costs(none, plan)["cpu_ms"]
    idle = [_row(num, costs(replace(none, num=num), plan), nobody) for num in plan.workers]
    yield Table(idle, "Idle workers")
    if plan.tenants:
        of_many = {num: replace(none, num=plan.num_of_many, tenants=num) for num in plan.tenants}
        rows = [{"tenants": num} | _row(one.num, costs(one, plan), nobody) for num, one in of_many.items()]
        yield Table(rows, "Idle workers of many tenants")
    seldom = replace(none, rows=plan.rows, tokens_per_s=plan.tokens_per_s, flush_ms=plan.flush_ms)
    often = replace(seldom, tokens_per_s=plan.often_tokens_per_s, flush_ms=plan.often_flush_ms)
    loads = [
        replace(load, num=num) for nums, load in ((plan.busy, seldom), (plan.often, often)) for num in nums
    ]
    if busy := [_busy(load, plan, nobody) for load in loads]:
        yield Table(busy, "Busy workers")
    if busy and len(idle) > 1:
        paper = f"On paper, one Redis at {100 * SHARE:.0f} % with workers of {PAPER_ROWS} rows"
        yield Table(list(on_paper(idle, busy)), f"{paper} that draw {PAPER_TOKENS_PER_S:.0f} tokens/s each")


def _row(num: int, found: Figures, nobody: float) -> Figures:
    return {
        "workers": num,
        "commands/s": round(found["commands"], 1),
        "connections": int(found["connections"]),
        "CPU of Redis, ms/s": found["cpu_ms"] - nobody,
        "a worker, us/s": 1000 * (found["cpu_ms"] - nobody) / num,
    }


def _busy(load: Workers, plan: Plan, nobody: float) -> Figures:
    """With all that a worker does, and with its events alone."""
    found = costs(load, plan)
    alone = costs(replace(load, has_parts=False), plan)
    of_events = (alone["cpu_ms"] - nobody) * found["events"] / alone["events"]
    return _row(load.num, found, nobody) | {
        "events/s": round(found["events"]),
        "tokens/s": round(load.num * load.rows * load.tokens_per_s),
        "of events, ms/s": of_events,
        "beyond them, %": 100 * (found["cpu_ms"] - nobody - of_events) / of_events,
        "lag p50, ms": round(found.get("lag_p50_ms", 0.0), 1),
        "lag p99, ms": round(found.get("lag_p99_ms", 0.0), 1),
    }


def on_paper(idle: Sequence[Figures], busy: Sequence[Figures]) -> Iterator[dict[str, float | str]]:
    """What one Redis carries that is busy for half of its time, by what one more worker and event cost."""
    first, last = idle[0], idle[-1]
    cpu = "CPU of Redis, ms/s"
    worker_ms = (last[cpu] - first[cpu]) / (last["workers"] - first["workers"])
    event_ms = busy[-1]["of events, ms/s"] / busy[-1]["events/s"]
    for events, flush_ms in {"idle": 0.0, **PAPER_FLUSH_MS}.items():
        num_events = PAPER_ROWS * 1000 / flush_ms if flush_ms else 0.0
        num_workers = SHARE * 1000 / (worker_ms + num_events * event_ms)
        yield {
            "an event": events,
            "events/s a worker": num_events,
            "us/s a worker": 1000 * (worker_ms + num_events * event_ms),
            "beyond events, %": 100 * worker_ms / (num_events * event_ms) if num_events else 0.0,
            "workers": round(num_workers),
            "tokens/s": round(num_workers * PAPER_ROWS * PAPER_TOKENS_PER_S) if num_events else 0,
        }


BENCHMARK = Benchmark("fleet", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
