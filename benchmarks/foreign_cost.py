"""What a token of a foreign engine costs the processor: a worker in front of a server that answers at once.

    python -m benchmarks.foreign_cost [--write]

As many jobs as rows stream to their ends. The server gives each row a token a step, as many in all a second
as it is told to, or as it can. All of the worker's process counts: receiving, reading, detokenizing, events,
Redis, leases, results.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.jobs import greedy, prompts
from benchmarks.process_figures import cpu_s
from benchmarks.processes import http_server
from benchmarks.report import Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.tasks.ledger.keys import Keys
from tests.chaos.harness.patience import wait_until


@dataclass(frozen=True)
class Plan:
    engines: tuple[str, ...] = ("vllm", "llama-server")
    rows: int = 256
    max_tokens: int = 512
    tokens_per_s: int = 20_000
    flush_ms: tuple[int, ...] = (50, 200)
    rounds: int = 3


def measure(plan: Plan) -> Iterator[Table]:
    rows = [row for engine in plan.engines for row in of_engine(engine, plan)]
    yield Table(rows, f"{plan.rows} rows, up to {plan.tokens_per_s:,} tokens a second")


def of_engine(engine: str, plan: Plan) -> Iterator[Row]:
    with http_server("-m", "benchmarks.instant_server", str(plan.rows / plan.tokens_per_s)) as server:
        asked: dict[str, Any] = {"engine": engine, "engine_url": server.url}
        with warm_worker(plan.rows, greedy(16), **asked) as queue:
            for flush_ms in plan.flush_ms:
                found = [spent(queue, plan, flush_ms) for _ in range(plan.rounds)]
                yield {
                    "engine": engine,
                    "flush_ms": flush_ms,
                    "us a token": [used_us for used_us, _ in found],
                    "tokens a second": [rate for _, rate in found],
                }


def spent(queue: Queue, plan: Plan, flush_ms: int) -> tuple[float, float]:
    """The worker's microseconds a token, and the tokens a second, of one round of jobs."""
    before_s, began_s = cpu_s(queue.pid), perf_counter()
    sampling = greedy(plan.max_tokens)
    jobs = [{"prompt": one, "sampling": sampling, "flush_ms": flush_ms} for one in prompts(plan.rows)]
    ids = [accepted.job_id for accepted in queue.client.submit_many(jobs)]
    wait_until(lambda: all(queue.client.job(one).finish_reason for one in ids[-1:]), "the last job ends")
    num_tokens = sum(len(queue.client.result(one).ids) for one in ids)
    rate = num_tokens / (perf_counter() - began_s)
    with Redis.from_url(queue.url) as redis:
        wait_until(lambda: not redis.hlen(Keys().unacked_key), "all results are stored")
    return 1e6 * (cpu_s(queue.pid) - before_s) / num_tokens, rate


BENCHMARK = Benchmark("foreign_cost", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
