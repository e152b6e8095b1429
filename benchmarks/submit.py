"""How many jobs a second one process enqueues, alone and in lots, and what CPU time a job takes.

    python -m benchmarks.submit [--write]

One client and a Redis of its own, with nobody who takes jobs from it. A prompt has 400 characters. Of a batch
it is the first round: its rows are read, their jobs are sent, and their states are asked. Each figure is the
median of the rounds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import Redis

from benchmarks.harness import Benchmark, in_turns, main, merged
from benchmarks.meter import Meter
from benchmarks.report import Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client

JOB: dict[str, Any] = {"prompt": "x" * 400, "max_tokens": 64}


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 5_000
    #: Of those that go alone, which take longer.
    num_single: int = 1_000
    lots: tuple[int, ...] = (1, 10, 100, 1_000)
    window: int = 1_000
    rounds: int = 5


def one_by_one(client: Client, num_jobs: int) -> None:
    for _ in range(num_jobs):
        client.submit(**JOB)


def in_lots(lot: int, client: Client, num_jobs: int) -> None:
    for outcome in client.submit_many((JOB for _ in range(num_jobs)), lot=lot):
        if outcome.error:
            raise outcome.error


def in_batches(window: int, client: Client, num_jobs: int) -> None:
    for _ in range(num_jobs // window):
        batch = client.batch((JOB for _ in range(window)), window=window)
        batch.poll()
        if batch.window.num_under_way != window:
            raise AssertionError(f"{batch.window.num_under_way} of {window} jobs are under way")


def cost(redis: Redis, enqueue: Callable[[int], None], num_jobs: int) -> dict[str, float]:
    """What a job takes, on a Redis that is empty before."""
    redis.flushdb()
    spent = Meter(redis).spent(partial(enqueue, num_jobs))
    return {
        "jobs/s": round(num_jobs / spent.wall_s),
        "CPU of the client, us": 1e6 * spent.own_cpu_s / num_jobs,
        "CPU of Redis, us": 1e6 * spent.redis_cpu_s / num_jobs,
    }


def measure(plan: Plan) -> Iterator[Table]:
    ways: dict[str, tuple[Callable[[Client, int], None], int]] = {
        "submit": (one_by_one, plan.num_single),
        **{
            f"submit_many, lots of {lot:,}": (
                partial(in_lots, lot),
                plan.num_single if lot == 1 else plan.num_jobs,
            )
            for lot in plan.lots
        },
        f"a batch, {plan.window:,} rows a round": (partial(in_batches, plan.window), plan.num_jobs),
    }
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Client(server.url, model="tales") as client,
    ):
        acts = {
            name: partial(cost, redis, partial(enqueue, client), num_jobs)
            for name, (enqueue, num_jobs) in ways.items()
        }
        found = in_turns(acts, plan.rounds)
    yield Table([{"call": name, **merged(rounds)} for name, rounds in found.items()])


BENCHMARK = Benchmark("submit", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
