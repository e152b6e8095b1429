"""How many jobs a second one process enqueues, alone and in lots, and what CPU time a job takes.

    python -m benchmarks.submit [--write]

One client and a Redis of its own, with nobody who takes jobs from it. A prompt has 400 characters. Of a batch
it is the first round: its rows are read, their jobs are sent, and their states are asked. The round of the
median speed counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any

from redis import Redis

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client

MODEL = "tales"
#: Figures by their names.
Cost = dict[str, float]
JOB: Mapping[str, Any] = {"prompt": "x" * 400, "max_tokens": 64}


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 5_000
    #: Of those that go alone, which take longer.
    num_single: int = 1_000
    lots: Sequence[int] = (1, 10, 100, 1_000)
    window: int = 1_000
    rounds: int = 5


def one_by_one(client: Client, num_jobs: int) -> None:
    for _ in range(num_jobs):
        client.submit(**JOB)


def in_lots(client: Client, num_jobs: int, lot: int) -> None:
    for outcome in client.submit_many((JOB for _ in range(num_jobs)), lot=lot):
        if outcome.error:
            raise outcome.error


def in_batches(client: Client, num_jobs: int, window: int) -> None:
    for _ in range(num_jobs // window):
        batch = client.batch((JOB for _ in range(window)), window=window)
        batch.poll()
        if batch.window.num_under_way != window:
            raise AssertionError(f"{batch.window.num_under_way} of {window} jobs are under way")


def ways(client: Client, plan: Plan) -> Iterator[tuple[str, Callable[[int], None], int]]:
    """What enqueues jobs, by its name, and how many of them."""
    yield "submit", partial(one_by_one, client), plan.num_single
    for lot in plan.lots:
        num_jobs = plan.num_single if lot == 1 else plan.num_jobs
        yield f"submit_many, lots of {lot:,}", partial(in_lots, client, lot=lot), num_jobs
    yield (
        f"a batch, {plan.window:,} rows a round",
        partial(in_batches, client, window=plan.window),
        plan.num_jobs,
    )


def cost(redis: Any, enqueue: Callable[[int], None], num_jobs: int) -> Cost:
    """What a job takes, on a Redis that is empty before."""
    redis.flushdb()
    before = _spent_s(redis)
    enqueue(num_jobs)
    wall_s, client_s, redis_s = (b - a for a, b in zip(before, _spent_s(redis), strict=True))
    return {
        "jobs/s": round(num_jobs / wall_s),
        "CPU of the client, us": round(1e6 * client_s / num_jobs, 1),
        "CPU of Redis, us": round(1e6 * redis_s / num_jobs, 1),
    }


def _spent_s(redis: Any) -> tuple[float, float, float]:
    """Time, and CPU time of this process and of Redis."""
    used = redis.info("cpu")
    return perf_counter(), process_time(), used["used_cpu_user"] + used["used_cpu_sys"]


def measure(plan: Plan) -> Report:
    costs: dict[str, list[Cost]] = {}
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Client(server.url, model=MODEL) as client,
    ):
        # In turns, so that a machine that slows down does so for each.
        for _ in range(plan.rounds):
            for name, enqueue, num_jobs in ways(client, plan):
                costs.setdefault(name, []).append(cost(redis, enqueue, num_jobs))
    calls = [{"call": name, **_median(rounds)} for name, rounds in costs.items()]
    return {"benchmark": "submit", "plan": asdict(plan), "conditions": conditions(), "calls": calls}


def _median(rounds: Sequence[Cost]) -> Cost:
    """The round of the median speed."""
    return sorted(rounds, key=lambda one: one["jobs/s"])[len(rounds) // 2]


def tables(report: Report) -> Iterator[Table]:
    calls = report["calls"]
    yield Table(list(calls[0]), [list(call.values()) for call in calls])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
