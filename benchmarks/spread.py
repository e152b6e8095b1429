"""How jobs spread over workers: how long they wait for a row while not all rows of the herd are taken.

    python -m benchmarks.spread [--write]

Workers without a model draw tokens at the pace of a model. Jobs come one by one, evenly; one in so many is
long. They take about six in ten of all rows, so none need wait. The floor is one worker with as many rows.
Many small workers show what it costs Redis that all of them wait for the same messages.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep

from benchmarks.harness import Benchmark, main, percentile
from benchmarks.meter import Meter
from benchmarks.processes import fake_worker
from benchmarks.report import Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.protocol.result import Result
from tests.chaos.harness.patience import wait_until

MODEL = "tales"


@dataclass(frozen=True)
class Plan:
    rows: int = 64
    workers: int = 4
    many_workers: int = 16
    jobs: int = 800
    jobs_per_s: float = 65.0
    short_tokens: int = 5
    long_tokens: int = 120
    long_every: int = 4
    tokens_per_s: float = 50.0


def measure(plan: Plan) -> Iterator[Table]:
    rows = [spread(plan, num_workers) for num_workers in (plan.workers, plan.many_workers, 1)]
    yield Table(rows, f"{plan.jobs} jobs, {plan.jobs_per_s:g} a second; one in {plan.long_every} is long")


def spread(plan: Plan, num_workers: int) -> Row:
    slots = plan.rows // num_workers
    with EmbeddedRedis() as server, ExitStack() as stack, Client(server.url, model=MODEL) as client:
        answer = "one two three four " * plan.long_tokens
        options = ("--answer", answer, "--tokens-per-s", str(plan.tokens_per_s))
        for _ in range(num_workers):
            stack.enter_context(fake_worker(server.url, MODEL, slots, *options))
        wait_until(lambda: len(client.workers()) == num_workers, "all workers are up", 120)
        client.result(client.submit(prompt="Once"), timeout_s=60)
        meter = Meter(stack.enter_context(connect(server.url)))
        before = meter.read()
        results = run(client, plan)
        redis_us = 1e6 * (meter.read() - before).redis_cpu_s / plan.jobs
    waited_ms = sorted(1000 * one.timings.queue_s for one in results if one.timings and one.timings.queue_s)
    by_worker = Counter(one.worker for one in results).values()
    return {
        "workers": num_workers,
        "rows each": slots,
        "jobs a worker": f"{min(by_worker)} to {max(by_worker)}",
        "waited p50 ms": median(waited_ms),
        "p99 ms": percentile(waited_ms, 99),
        "longest ms": waited_ms[-1],
        "Redis us a job": redis_us,
    }


def run(client: Client, plan: Plan) -> list[Result]:
    """Submit jobs at their pace, and return their results."""
    began_s, ids = monotonic(), []
    for number in range(plan.jobs):
        sleep(max(0.0, began_s + number / plan.jobs_per_s - monotonic()))
        num_tokens = plan.short_tokens if number % plan.long_every else plan.long_tokens
        ids.append(client.submit(prompt="Once", sampling={"max_tokens": num_tokens}))
    return [client.result(job_id, timeout_s=120) for job_id in ids]


BENCHMARK = Benchmark("spread", __doc__, Plan(), measure, threads=1)

if __name__ == "__main__":
    main(BENCHMARK)
