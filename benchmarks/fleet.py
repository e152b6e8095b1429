"""What a fleet costs one Redis: simulated workers, idle and busy, and what follows for more of them.

    python -m benchmarks.fleet [--write]
    python -m benchmarks.fleet --workers 10 200 --tenants 10 --rows 4 --tokens-per-s 20 --flush-ms 50

Ledger, Redis and the threads of each worker are real, the models are not (`benchmarks.simulated_workers`).
Commands are those of clients, and not those that scripts run.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from threading import Thread
from time import monotonic, sleep
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, for_readers, keep
from benchmarks.simulated_workers import Plan as Workers
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.events import Token, parse_event
from llama_herd.tasks.ledger.keys import Keys

NUM_PROCESSES = 2
#: Commands that no script of ours runs: those of clients.
OF_CLIENTS = ("evalsha", "eval", "brpop", "info", "ping", "subscribe", "script|exists", "script|load", "zadd")
#: A Redis should be busy for no more than this share of its time.
SHARE = 0.5


@dataclass(frozen=True)
class Plan:
    #: More need more than two cores for their own threads.
    workers: Sequence[int] = (10, 50, 200)
    tenants: Sequence[int] = (1, 10, 100)
    #: Of the busy workers, which are fewer: this machine draws no more tokens.
    busy: Sequence[int] = (10, 50, 100)
    rows: int = 4
    tokens_per_s: float = 10.0
    flush_ms: int = 500
    #: Of the workers of many tenants.
    num_of_many: int = 10
    seconds: float = 10.0
    #: After all have reported, before they are measured.
    calm_s: float = 5.0


class Listener:
    """Reads all streams over one connection, as a gateway does, and notes how late each event comes."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._pubsub: Any = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe("herd:*:tokens:*")
        self.lags_s: list[float] = []
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(RedisError):  # the Redis of this measurement has ended
            for message in self._pubsub.listen():
                event = parse_event(message["data"])
                if isinstance(event, Token):
                    self.lags_s.append(monotonic() - float(event.text.split()[-1]))


@contextmanager
def fleet(workers: Workers) -> Iterator[None]:
    """All workers, in some processes."""
    num = max(1, -(-workers.num // NUM_PROCESSES))
    with ExitStack() as stack:
        processes = []
        for first in range(0, workers.num, num):
            part = replace(workers, first=first, num=min(num, workers.num - first))
            command = [sys.executable, "-m", "benchmarks.simulated_workers", json.dumps(asdict(part))]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            if process.stdout is None or process.stdout.readline() != b"up\n":
                raise RuntimeError("the simulated workers did not start")
        yield


def costs(workers: Workers, plan: Plan, *, listens: bool = False) -> dict[str, float]:
    """What Redis does for these workers in a second, once all are up."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        with fleet(replace(workers, url=server.url)):
            listener = Listener(server.url) if listens else None
            _wait_until_up(redis, replace(workers, url=server.url))
            sleep(plan.calm_s)  # what begins with a start is over
            before, began_s = _look(redis), monotonic()
            num_lags = len(listener.lags_s) if listener else 0
            sleep(plan.seconds)
            after, took_s = _look(redis), monotonic() - began_s
        found = {name: (after[name] - before[name]) / took_s for name in before}
        num_clients = redis.info("clients")["connected_clients"]
        if listener is not None:
            lags = quantiles(listener.lags_s[num_lags:], n=100)
            found |= {"lag_p50_ms": 1000 * lags[49], "lag_p99_ms": 1000 * lags[98]}
    return found | {"connections": num_clients}


def _wait_until_up(redis: Any, workers: Workers) -> None:
    """Wait until all have reported."""
    tenants = workers.settings.by_queue.values() if workers.has_parts and workers.num else ()
    while any(redis.zcard(Keys(own.tenant).key("workers")) < workers.num for own in tenants):
        sleep(0.1)


def _look(redis: Any) -> dict[str, float]:
    used, stats = redis.info("cpu"), redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
    return {
        "cpu_ms": 1000 * (used["used_cpu_user"] + used["used_cpu_sys"]),
        "commands": sum(calls.get(name, 0) for name in OF_CLIENTS if name != "zadd"),
        "events": calls.get("publish", 0),
    }


def measure(plan: Plan) -> Report:
    none = Workers("", 0)
    nobody = costs(none, plan)["cpu_ms"]
    idle = [_row(num, costs(replace(none, num=num), plan), nobody) for num in plan.workers]
    many = [
        {"tenants": num} | _row(plan.num_of_many, costs(of_many, plan), nobody)
        for num in plan.tenants
        for of_many in [replace(none, num=plan.num_of_many, tenants=num)]
    ]
    load = replace(none, rows=plan.rows, tokens_per_s=plan.tokens_per_s, flush_ms=plan.flush_ms)
    busy = [_busy(replace(load, num=num), plan, nobody) for num in plan.busy]
    return {
        "benchmark": "fleet",
        "plan": asdict(plan),
        "conditions": conditions(),
        "nobody_cpu_ms": round(nobody, 2),
        "idle": idle,
        "of_many_tenants": many,
        "busy": busy,
    }


def _row(num: int, found: dict[str, float], nobody: float) -> dict[str, float]:
    return {
        "workers": num,
        "commands/s": round(found["commands"], 1),
        "connections": int(found["connections"]),
        "CPU of Redis, ms/s": round(found["cpu_ms"] - nobody, 2),
        "a worker, us/s": round(1000 * (found["cpu_ms"] - nobody) / num, 1),
    }


def _busy(load: Workers, plan: Plan, nobody: float) -> dict[str, float]:
    """With all that a worker does, and with its events alone."""
    found = costs(load, plan, listens=True)
    alone = costs(replace(load, has_parts=False), plan)
    return _row(load.num, found, nobody) | {
        "events/s": round(found["events"], 1),
        "tokens/s": round(load.num * load.rows * load.tokens_per_s, 1),
        "of events alone, ms/s": round(alone["cpu_ms"] - nobody, 2),
        "lag p50, ms": round(found["lag_p50_ms"], 1),
        "lag p99, ms": round(found["lag_p99_ms"], 1),
    }


def tables(report: Report) -> Iterator[Table]:
    titles = {
        "idle": "Idle workers",
        "of_many_tenants": "Idle workers of many tenants",
        "busy": "Busy workers",
    }
    for name, title in titles.items():
        rows = report[name]
        if rows:
            yield Table(list(rows[0]), [list(row.values()) for row in rows], title)


def main() -> None:
    plan = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")
    parser.add_argument("--workers", type=int, nargs="*", default=plan.workers, help="of idle ones")
    parser.add_argument("--tenants", type=int, nargs="*", default=plan.tenants)
    parser.add_argument("--busy", type=int, nargs="*", default=plan.busy, help="of busy ones")
    parser.add_argument("--rows", type=int, default=plan.rows, help="of a busy worker")
    parser.add_argument("--tokens-per-s", type=float, default=plan.tokens_per_s, help="of a row")
    parser.add_argument("--flush-ms", type=int, default=plan.flush_ms)
    parser.add_argument("--seconds", type=float, default=plan.seconds)
    given = vars(parser.parse_args())
    is_kept = given.pop("write")
    report = measure(replace(plan, **given))
    text = for_readers(report, tables(report))
    print(text)
    if is_kept:
        keep(report, text)


if __name__ == "__main__":
    main()
