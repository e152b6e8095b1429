"""How soon an urgent job has its first token while lower ones have all rows, and what that costs.

    python -m benchmarks.urgent_jobs

The bundled model in one worker process. More long jobs of the lowest priority wait than there are rows.
Beside them a job of a few tokens is submitted now and then: at the same priority, or urgent.
"""

import random
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep

from benchmarks.harness import Benchmark, main, percentile
from benchmarks.jobs import PROMPTS, greedy
from benchmarks.report import Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.local.redis_server import free_port
from llama_herd.tasks.protocol.priority import MAX_PRIORITY, MIN_PRIORITY
from tests.chaos.harness.patience import wait_until

COUNTERS = ("preemptions", "recomputed_tokens", "generation_tokens")


@dataclass(frozen=True)
class Plan:
    """`num_equal`, `num_urgent`: of the few jobs. `pause_s`: between two of them, on average."""

    rows: int = 8
    num_waiting: int = 40
    long_tokens: int = 500
    num_equal: int = 8
    num_urgent: int = 150
    few_tokens: int = 8
    pause_s: float = 0.5


def counted(port: int) -> Mapping[str, float]:
    """The counters of the worker."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {name: re.search(rf"^herd_{name}_total{{.*}} (\S+)$", text, re.M) for name in COUNTERS}
    return {name: float(one[1]) if one else 0.0 for name, one in found.items()}


def first_token_s(queue: Queue, priority: int, plan: Plan) -> float:
    """Seconds from the submission to the first token, as who waits for it sees it."""
    begun_s = monotonic()
    job_id = queue.client.submit(
        prompt=random.choice(PROMPTS), sampling=greedy(plan.few_tokens), priority=priority, flush_ms=0
    )
    for event in queue.client.stream(job_id):
        if event.type == "token":
            return monotonic() - begun_s
    raise RuntimeError("the job has ended without a token")


def measured(priority: int, num_few: int, plan: Plan) -> Row:
    port = free_port()
    with warm_worker(plan.rows, greedy(plan.few_tokens), metrics_port=port) as queue:
        long_jobs = greedy(plan.long_tokens)

        def fill() -> None:
            """Keep so many long jobs in the queue."""
            for _ in range(plan.num_waiting - queue.client.status().pending):
                queue.client.submit(prompt=random.choice(PROMPTS), sampling=long_jobs, priority=MIN_PRIORITY)

        fill()
        wait_until(lambda: queue.client.status().running >= plan.rows, "all rows are taken")
        before, seconds = counted(port), list[float]()
        for _ in range(num_few):
            sleep(random.expovariate(1 / plan.pause_s))
            fill()
            seconds.append(first_token_s(queue, priority, plan))
        done = {name: value - before[name] for name, value in counted(port).items()}
    return {
        "first token p50 s": median(seconds),
        "p99 s": percentile(seconds, 99),
        "preemptions": int(done["preemptions"]),
        "computed again": f"{done['recomputed_tokens'] / done['generation_tokens']:.2%} of the tokens",
    }


def measure(plan: Plan) -> Iterator[Table]:
    equal = measured(MIN_PRIORITY, plan.num_equal, plan)
    urgent = measured(MAX_PRIORITY, plan.num_urgent, plan)
    rows = [{"the few jobs are": "as the others", **equal}, {"the few jobs are": "urgent", **urgent}]
    yield Table(rows, f"Jobs of {plan.few_tokens} tokens beside {plan.num_waiting} of {plan.long_tokens}")


BENCHMARK = Benchmark("urgent_jobs", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
