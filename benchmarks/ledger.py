"""What the calls of the ledger cost: round trip, and the CPU time of Redis.

    python -m benchmarks.ledger [--write]

Calls run one after the other over one connection to a Redis of their own, as those of a worker do; the
events of a step are one call for all its jobs. A prompt has 400 characters.

The second table is of events with some tokens each; one core of Redis takes so many tokens a second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.meter import Meter
from benchmarks.report import Cell, Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.held_jobs import EmitEntry, TenantEntry, emit
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call, run_calls
from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope

JOB = GenerationJob(prompt="x" * 400, model="tales")
OWNER, QUEUE = "owner", "herd.tales"

#: So long that no lease ends during a measurement.
LEASE_MS = 60_000


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 1000
    batches: tuple[int, ...] = (1, 32, 256)
    tokens_an_event: tuple[int, ...] = (1, 4, 16)
    #: Of each batch, at least, and so many that there are some thousand events.
    num_steps: int = 200
    num_events: int = 5_000


def cost(redis: Redis, what: str, calls: Sequence[RedisCall[Any]]) -> dict[str, Cell]:
    """Mean of a call in microseconds."""
    spent = Meter(redis).spent(lambda: [run_call(redis, call) for call in calls])
    a_call = 1e6 / len(calls)
    return {"call": what, "us": a_call * spent.wall_s, "CPU of Redis, us": a_call * spent.redis_cpu_s}


def life(redis: Redis, ledger: Ledger, plan: Plan) -> Iterator[Row]:
    """The calls of a job from its submission to its end, and their sum."""
    ids = [f"job-{number}" for number in range(plan.num_jobs)]
    calls = {
        "submit": [_submit(ledger, job_id) for job_id in ids],
        "claim": [ledger.claim(job_id, OWNER, queue=QUEUE) for job_id in ids],
        "first event": [_emit(ledger, [_started(job_id)]) for job_id in ids],
        "last event": [_emit(ledger, [_end(job_id)]) for job_id in ids],
        "read for the result": [ledger.read(job_id) for job_id in ids],
        "settle": [ledger.settle(job_id) for job_id in ids],
    }
    costs: list[dict[str, Any]] = [cost(redis, what, acts) for what, acts in calls.items()]
    sums = {name: sum(one[name] for one in costs) for name in ("us", "CPU of Redis, us")}
    yield from (*costs, {"call": "a job, but for its tokens", **sums})


def steps(redis: Redis, ledger: Ledger, plan: Plan) -> Iterator[Row]:
    """An event of each job of the batch, of so many tokens."""
    for num_rows, num_tokens in product(plan.batches, plan.tokens_an_event):
        ids = [f"row-{num_rows}-{num_tokens}-{number}" for number in range(num_rows)]
        run_calls(redis, [_submit(ledger, job_id) for job_id in ids])
        run_calls(redis, [ledger.claim(job_id, OWNER, queue=QUEUE) for job_id in ids])
        run_call(redis, _emit(ledger, [_started(job_id) for job_id in ids]))
        num_steps = max(plan.num_steps, plan.num_events // num_rows)
        found: Any = cost(redis, "", [_tokens(ledger, ids, step, num_tokens) for step in range(num_steps)])
        step_us = found["CPU of Redis, us"]
        yield {
            "rows a call": num_rows,
            "tokens an event": num_tokens,
            "CPU of Redis, us an event": step_us / num_rows,
            "us a token": step_us / num_rows / num_tokens,
            "tokens/s a core": round(1e6 * num_rows * num_tokens / step_us),
        }


def _tokens(ledger: Ledger, job_ids: Sequence[str], step: int, size: int) -> RedisCall[Any]:
    i = step * size
    entries = [EmitEntry.from_event(_token(job_id, 2 + step, i, size), i) for job_id in job_ids]
    return emit(OWNER, [TenantEntry(ledger, entry) for entry in entries], ledger)


def _submit(ledger: Ledger, job_id: str) -> RedisCall[Any]:
    return ledger.submit(job_id, JOB, Envelope.for_job(job_id, QUEUE))


def _emit(ledger: Ledger, events: Sequence[Event]) -> RedisCall[Any]:
    entries = [EmitEntry.from_event(event, max(0, event.seq - 2)) for event in events]
    return emit(OWNER, [TenantEntry(ledger, entry) for entry in entries], ledger)


def _started(job_id: str) -> Started:
    return Started(at_ms=1, seq=1, job=job_id, epoch=1, attempt=1, worker="w", model="tales", seed=7)


def _token(job_id: str, seq: int, i: int, size: int) -> Token:
    return Token(seq=seq, job=job_id, epoch=1, i=i, ids=tuple(range(i, i + size)), text=" word" * size)


def _end(job_id: str) -> End:
    return End(seq=2, job=job_id, epoch=1, finish_reason="stop", n=0, attempts=1)


def measure(plan: Plan) -> Iterator[Table]:
    ledger = Ledger(lease_ms=LEASE_MS)
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        yield Table(list(life(redis, ledger, plan)))
        yield Table(list(steps(redis, ledger, plan)))


BENCHMARK = Benchmark("ledger", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
