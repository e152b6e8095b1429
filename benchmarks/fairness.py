"""What a flood of one tenant costs another: how long a burst of jobs waits behind it.

    python -m benchmarks.fairness [--write]

The bundled model in one worker process for two tenants, several rounds. Its fair share is what the burst
waits alone in a worker with half the rows. Behind a flood it also waits for rows: what runs is not put back,
so it has its half only once so many jobs of the flood have ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.harness import Benchmark, in_turns, main, merged, percentile
from benchmarks.jobs import greedy, prompts
from benchmarks.report import Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.tasks.client.client import Client
from tests.chaos.harness.patience import wait_until

FLOODING = "flooding"

Wait = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """`floods`: tokens of each job of a flood; 0 for none."""

    rows: int = 16
    num_jobs: int = 128
    max_tokens: int = 64
    num_flood: int = 1000
    floods: tuple[int, ...] = (0, 64, 400)
    rounds: int = 3


def submit(client: Client, num_jobs: int, max_tokens: int) -> list[str]:
    return [client.submit(prompt=prompt, sampling=greedy(max_tokens)) for prompt in prompts(num_jobs)]


@contextmanager
def flood(queue: Queue, num_jobs: int, max_tokens: int) -> Iterator[None]:
    """Jobs of another tenant that fill the worker and its queue as long as this lasts; none of 0 tokens."""
    if not max_tokens:
        yield
        return
    with Client(queue.url, tenant=FLOODING) as client:
        job_ids = submit(client, num_jobs, max_tokens)
        wait_until(lambda: client.status().running, "the flood runs")
        yield
        for job_id in job_ids:
            client.cancel(job_id)
        # Messages of jobs that have ended have not been taken yet.
        wait_until(lambda: not client.status().depth, "the flood is over")


def burst(queue: Queue, plan: Plan, flood_tokens: int = 0) -> Wait:
    """How long its jobs waited until they began."""
    with flood(queue, plan.num_flood, flood_tokens):
        results = [queue.client.result(job) for job in submit(queue.client, plan.num_jobs, plan.max_tokens)]
    waited_s = [result.timings.queue_s or 0.0 for result in results if result.timings]
    return {
        "first begins, s": min(waited_s),
        "wait p50 s": median(waited_s),
        "wait p99 s": percentile(waited_s, 99),
    }


def measure(plan: Plan) -> Iterator[Table]:
    warm = greedy(plan.max_tokens)
    with warm_worker(plan.rows // 2, warm) as queue:
        share = [burst(queue, plan) for _ in range(plan.rounds)]
    with warm_worker(plan.rows, warm, tenants=f"default,{FLOODING}") as queue:
        ways = {
            f"behind {plan.num_flood:,} jobs of {tokens} tokens" if tokens else "alone, all rows": partial(
                burst, queue, plan, tokens
            )
            for tokens in plan.floods
        }
        found = in_turns(ways, plan.rounds)
    rows = [row(name, waits, share) for name, waits in found.items()]
    title = f"{plan.num_jobs} jobs of {plan.max_tokens} tokens, {plan.rows} rows"
    yield Table([row("alone, half the rows: its share", share, share), *rows], title)


def row(name: str, waits: list[Wait], share: list[Wait]) -> Row:
    own, others = merged(waits), merged(share)
    return {
        "the burst": name,
        **own,
        "p99 over its share's": median(own["wait p99 s"]) / median(others["wait p99 s"]),
    }


BENCHMARK = Benchmark("fairness", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
