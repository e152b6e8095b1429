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
JOB: Mapping[str, Any] = {"prompt": "x" * 400, "max_tokens": 64}


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 10_000
    #: Of those that go alone, which take longer.
    num_single: int = 2_000
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


@dataclass(frozen=True)
class Meter:
    """Measures what enqueues jobs, on a Redis that is empty before each round."""

    redis: Any
    rounds: int

    def cost(self, what: str, act: Callable[[int], None], num_jobs: int) -> dict[str, str | float]:
        """What a job takes in the round of the median speed."""
        costs = sorted(
            (self._round(act, num_jobs) for _ in range(self.rounds)), key=lambda one: one["jobs/s"]
        )
        return {"call": what, **costs[self.rounds // 2]}

    def _round(self, act: Callable[[int], None], num_jobs: int) -> dict[str, float]:
        self.redis.flushdb()
        before = self._spent_s()
        act(num_jobs)
        wall_s, client_s, redis_s = (b - a for a, b in zip(before, self._spent_s(), strict=True))
        return {
            "jobs/s": round(num_jobs / wall_s),
            "CPU of the client, us": round(1e6 * client_s / num_jobs, 1),
            "CPU of Redis, us": round(1e6 * redis_s / num_jobs, 1),
        }

    def _spent_s(self) -> tuple[float, float, float]:
        """Time, and CPU time of this process and of Redis."""
        used = self.redis.info("cpu")
        return perf_counter(), process_time(), used["used_cpu_user"] + used["used_cpu_sys"]


def measure(plan: Plan) -> Report:
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Client(server.url, model=MODEL) as client,
    ):
        meter = Meter(redis, plan.rounds)
        calls = [meter.cost("submit", partial(one_by_one, client), plan.num_single)]
        for lot in plan.lots:
            num_jobs = plan.num_single if lot == 1 else plan.num_jobs
            calls.append(
                meter.cost(f"submit_many, lots of {lot:,}", partial(in_lots, client, lot=lot), num_jobs)
            )
        batches = partial(in_batches, client, window=plan.window)
        calls.append(meter.cost(f"a batch, {plan.window:,} rows a round", batches, plan.num_jobs))
    return {"benchmark": "submit", "plan": asdict(plan), "conditions": conditions(), "calls": calls}


def tables(report: Report) -> Iterator[Table]:
    calls = report["calls"]
    yield Table(list(calls[0]), [list(call.values()) for call in calls])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
