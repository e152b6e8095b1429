"""What a short job costs the processor: a worker whose model costs nothing, and Redis beside it.

    python -m benchmarks.job_cost [--write]

Each job wants so many tokens; they come faster than they are answered. All of the worker's process counts:
messages, claims, prompts, steps, events, results, acks. Redis' microseconds are its own, from its statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.jobs import drawn, prompts
from benchmarks.process_figures import cpu_s
from benchmarks.processes import fake_worker
from benchmarks.report import Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from tests.chaos.harness.patience import wait_until

MODEL = "tales"


@dataclass(frozen=True)
class Plan:
    tokens: tuple[int, ...] = (1, 8, 64)
    jobs: int = 4000
    slots: int = 64
    rounds: int = 3


def measure(plan: Plan) -> Iterator[Table]:
    answer = "one two three four " * -(-max(plan.tokens) // 4)  # a token a word: reading more would cost, too
    with EmbeddedRedis() as server, idle_worker(server.url, answer, plan.slots) as pid:
        rows = [of_tokens(server.url, pid, plan, num) for num in plan.tokens]
    yield Table(rows, f"{plan.jobs:,} jobs, {plan.slots} rows")


def of_tokens(url: str, pid: int, plan: Plan, num_tokens: int) -> Row:
    found = [spent(url, pid, plan.jobs, num_tokens) for _ in range(plan.rounds)]
    return {"tokens a job": num_tokens, **{name: [one[name] for one in found] for name in found[0]}}


def spent(url: str, pid: int, num_jobs: int, num_tokens: int) -> dict[str, float]:
    """One round."""
    with Client(url, model=MODEL) as client, Redis.from_url(url) as redis:
        redis.config_resetstat()
        before_s, began_s = cpu_s(pid), perf_counter()
        sampling = drawn(num_tokens)
        jobs = [{"prompt": one, "sampling": sampling} for one in prompts(num_jobs)]
        ids = [accepted.job_id for accepted in client.submit_many(jobs)]
        wait_until(lambda: is_done(redis, client, ids), "all results are stored", 600)
        took_s, used_s = perf_counter() - began_s, cpu_s(pid) - before_s
        redis_us = sum(one["usec"] for one in redis.info("commandstats").values())
        num_drawn = sum(len(client.result(job_id).ids) for job_id in ids)
    if num_drawn != num_jobs * num_tokens:
        raise RuntimeError(f"{num_drawn:,} tokens instead of {num_jobs * num_tokens:,}")
    return {
        "jobs a second": num_jobs / took_s,
        "worker, us a job": 1e6 * used_s / num_jobs,
        "Redis, us a job": redis_us / num_jobs,
    }


def is_done(redis: Redis, client: Client, ids: list[str]) -> bool:
    return bool(client.job(ids[-1]).finish_reason) and not redis.hlen(Keys().unacked_key)


@contextmanager
def idle_worker(url: str, answer: str, slots: int) -> Iterator[int]:
    """The id of a worker's process that answers at once."""
    with (
        fake_worker(url, MODEL, slots, "--answer", answer) as process,
        Client(url, model=MODEL) as client,
    ):
        client.result(client.submit(prompt="Once"), timeout_s=60)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        yield int(children.split()[0])


BENCHMARK = Benchmark("job_cost", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
