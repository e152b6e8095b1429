"""What a token costs the processor beside the engine's thread: a publisher behind a free engine.

    python -m benchmarks.publisher_cost [--write]

A thread hands on the tokens of full steps, as many a second as a card draws. The publisher gathers those of
each job, makes events of them, and sends these to a Redis process. Its thread's time on a processor counts:
neither its wait for Redis nor what the other thread does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, clock_gettime, monotonic, pthread_getcpuclockid, sleep

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.report import Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.worker.engine.interface import NewTokens, SampledToken, StepOutput
from llama_herd.worker.jobs.attempt import Attempt
from tests.chaos.harness.patience import wait_until
from tests.worker.jobs.publisher_desk import Desk


@dataclass(frozen=True)
class Plan:
    rows: int = 256
    tokens_per_s: int = 20_000
    flush_ms: tuple[int, ...] = (50, 200, 1000)
    seconds: float = 5.0


def measure(plan: Plan) -> Iterator[Table]:
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        rows = [published(redis, plan, flush_ms) for flush_ms in plan.flush_ms]
    yield Table(rows, f"{plan.rows} rows, {plan.tokens_per_s:,} tokens a second")


def published(redis: Redis, plan: Plan, flush_ms: int) -> Row:
    """One run: its jobs are opened and started before the clock runs."""
    redis.flushall()
    desk = Desk(redis)
    attempts = [
        desk.open(f"job-{row}", flush_ms=flush_ms, sampling={"max_tokens": 8192}) for row in range(plan.rows)
    ]
    publisher = desk.publisher
    for attempt in attempts:
        desk.start(attempt)
    publisher.start()
    wait_until(lambda: len(desk.started) == plan.rows, "all jobs have started")
    clock = pthread_getcpuclockid(publisher.ident or 0)
    before_s, calls_before, begun_s = clock_gettime(clock), publisher.num_answered, monotonic()
    step_s, num_steps = plan.rows / plan.tokens_per_s, int(plan.seconds * plan.tokens_per_s / plan.rows)
    for step in range(num_steps):
        publisher.put(step_outputs(attempts, step))
        sleep(max(0.0, begun_s + (step + 1) * step_s - clock_gettime(CLOCK_MONOTONIC)))
    took_s = monotonic() - begun_s
    wait_until(lambda: not publisher.num_waiting, "all is sent")
    used_s = clock_gettime(clock) - before_s
    num_calls = publisher.num_answered - calls_before
    publisher.stop()
    num_tokens = num_steps * plan.rows
    num_events = sum(attempt.stream.seq - 1 for attempt in attempts)
    return {
        "flush_ms": flush_ms,
        "tokens a second": num_tokens / took_s,
        "tokens an event": num_tokens / num_events,
        "calls a second": num_calls / took_s,
        "us a token": 1e6 * used_s / num_tokens,
        "us an event": 1e6 * used_s / num_events,
    }


def step_outputs(attempts: list[Attempt], step: int) -> list[StepOutput]:
    token = (SampledToken(1 + step % 3),)
    return [NewTokens(attempt.sequences[0], token, " one") for attempt in attempts]


BENCHMARK = Benchmark("publisher_cost", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
