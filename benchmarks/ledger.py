"""What the calls of the ledger cost: round trip, and the CPU time of Redis.

    python -m benchmarks.ledger [--write]

Calls run one after the other over one connection to a Redis of their own, as those of a worker do; the
events of a step are one call for all its jobs. A prompt has 400 characters.

The second table is of events with some tokens each; one core of Redis takes so many tokens a second. The
third is what a stream of 128 tokens takes in memory, after an answer of 2.56 s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, product
from time import perf_counter, sleep, time
from typing import Any

from redis import Redis

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.events import End, Event, Started, Token
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call, run_calls
from llama_herd.tasks.ledger.script_events import EmitEntry
from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS, sweep_tenant
from llama_herd.tasks.message import Envelope

JOB = GenerationJob(prompt="x" * 400, model="tales")
OWNER, QUEUE = "owner", "herd.tales"

#: So long that no lease ends during a measurement.
LEASE_MS = 60_000


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 1000
    batches: Sequence[int] = (1, 32, 256)
    tokens_an_event: Sequence[int] = (1, 4, 16)
    #: Of each batch, at least, and so many that there are some thousand events.
    num_steps: int = 200
    num_events: int = 5_000
    #: Events of a stream of 128 tokens: one each, one each 50 ms, and one each half second.
    stream_events: Sequence[int] = (128, 51, 6)
    num_waiting: int = 50_000
    num_sweeps: int = 21
    #: A sweep does not look at younger jobs.
    waiting_s: float = SWEEP_PATIENCE_MS / 1000


class Meter:
    """Runs calls and measures the cost of each."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def cost(self, what: str, calls: Sequence[RedisCall[Any]]) -> dict[str, str | float]:
        """Mean of a call in microseconds."""
        cpu_s, started_s = self._cpu_s(), perf_counter()
        for call in calls:
            run_call(self.redis, call)
        wall_s, cpu_s = perf_counter() - started_s, self._cpu_s() - cpu_s
        per_call = 1e6 / len(calls)
        return {
            "call": what,
            "us": round(per_call * wall_s, 1),
            "CPU of Redis, us": round(per_call * cpu_s, 1),
        }

    def _cpu_s(self) -> float:
        used = self.redis.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


def life(meter: Meter, ledger: Ledger, plan: Plan) -> Iterator[dict[str, str | float]]:
    """The calls of a job from its submission to its end, and their sum."""
    ids = [f"job-{number}" for number in range(plan.num_jobs)]
    costs = [
        meter.cost("submit", [_submit(ledger, job_id) for job_id in ids]),
        meter.cost("claim", [ledger.claim(job_id, OWNER, queue=QUEUE) for job_id in ids]),
        meter.cost("first event", [_emit(ledger, [_started(job_id)]) for job_id in ids]),
        meter.cost("last event", [_emit(ledger, [_end(job_id)]) for job_id in ids]),
        meter.cost("read for the result", [ledger.read(job_id) for job_id in ids]),
        meter.cost("settle", [ledger.settle(job_id) for job_id in ids]),
    ]
    yield from costs
    names = [name for name in costs[0] if name != "call"]
    yield {
        "call": "a job, but for its tokens",
        **{name: sum(float(one[name]) for one in costs) for name in names},
    }


def steps(meter: Meter, ledger: Ledger, plan: Plan) -> Iterator[dict[str, float]]:
    """An event of each job of the batch, of so many tokens."""
    for num_rows, num_tokens in product(plan.batches, plan.tokens_an_event):
        ids = [f"row-{num_rows}-{num_tokens}-{number}" for number in range(num_rows)]
        run_calls(meter.redis, [_submit(ledger, job_id) for job_id in ids])
        run_calls(meter.redis, [ledger.claim(job_id, OWNER, queue=QUEUE) for job_id in ids])
        run_call(meter.redis, _emit(ledger, [_started(job_id) for job_id in ids]))
        num_steps = max(plan.num_steps, plan.num_events // num_rows)
        calls = [_tokens(ledger, ids, step, num_tokens) for step in range(num_steps)]
        cost = float(meter.cost("", calls)["CPU of Redis, us"])
        yield {
            "rows a call": num_rows,
            "tokens an event": num_tokens,
            "CPU of Redis, us an event": round(cost / num_rows, 2),
            "us a token": round(cost / num_rows / num_tokens, 3),
            "tokens/s a core": round(1e6 * num_rows * num_tokens / cost),
        }


def streams(redis: Any, ledger: Ledger, plan: Plan) -> Iterator[dict[str, float]]:
    """Memory of a stream that has ended, by the size of its nodes."""
    for num_events in plan.stream_events:
        found: dict[str, float] = {"events": num_events}
        for node_bytes in (4096, 512):
            redis.config_set("stream-node-max-bytes", node_bytes)
            job_id = f"stream-{num_events}-{node_bytes}"
            _fill(redis, ledger, job_id, num_events)
            found[f"bytes, nodes of {node_bytes}"] = redis.memory_usage(ledger.events_key(job_id), samples=0)
        yield found


def _fill(redis: Redis, ledger: Ledger, job_id: str, num_events: int) -> None:
    run_call(redis, _submit(ledger, job_id))
    run_call(redis, ledger.claim(job_id, OWNER, queue=QUEUE))
    run_call(redis, _emit(ledger, [_started(job_id)]))
    sizes = [128 * (n + 1) // num_events - 128 * n // num_events for n in range(num_events)]
    firsts = [0, *accumulate(sizes)]
    for number, (i, size) in enumerate(zip(firsts, sizes, strict=False)):
        run_call(redis, ledger.emit(OWNER, [EmitEntry.from_event(_token(job_id, 2 + number, i, size), i)]))
    end = End(seq=2 + num_events, job=job_id, epoch=1, finish_reason="length", n=128, attempts=1)
    run_call(redis, ledger.emit(OWNER, [EmitEntry.from_event(end, 128)]))


def _tokens(ledger: Ledger, job_ids: Sequence[str], step: int, size: int) -> RedisCall[Any]:
    i = step * size
    return ledger.emit(
        OWNER, [EmitEntry.from_event(_token(job_id, 2 + step, i, size), i) for job_id in job_ids]
    )


def sweeps(meter: Meter, ledger: Ledger, plan: Plan) -> dict[str, str | float]:
    """The median of sweeps over a backlog. The time of the last sweep is set back, so that each one runs."""
    for start in range(0, plan.num_waiting, 1000):
        ids = [f"waiting-{number}" for number in range(start, min(start + 1000, plan.num_waiting))]
        run_calls(meter.redis, [_submit(ledger, job_id) for job_id in ids])
    sleep(plan.waiting_s)
    costs = []
    for _ in range(plan.num_sweeps):
        last_ms = int(1000 * time()) - LEASE_MS // 2
        meter.redis.hset(ledger.key("sweep"), mapping={"last": last_ms, "hold": 0})
        costs.append(meter.cost(f"a sweep with {plan.num_waiting:,} waiting", [sweep_tenant(ledger)]))
    return sorted(costs, key=lambda cost: cost["us"])[plan.num_sweeps // 2]


def _submit(ledger: Ledger, job_id: str) -> RedisCall[Any]:
    return ledger.submit(job_id, JOB, Envelope.for_job(job_id, QUEUE))


def _emit(ledger: Ledger, events: Sequence[Event]) -> RedisCall[Any]:
    return ledger.emit(OWNER, [EmitEntry.from_event(event, max(0, event.seq - 2)) for event in events])


def _started(job_id: str) -> Started:
    return Started(seq=1, job=job_id, epoch=1, attempt=1, worker="w", model="tales", seed=7)


def _token(job_id: str, seq: int, i: int, size: int) -> Token:
    return Token(seq=seq, job=job_id, epoch=1, i=i, ids=tuple(range(i, i + size)), text=" word" * size)


def _end(job_id: str) -> End:
    return End(seq=2, job=job_id, epoch=1, finish_reason="stop", n=0, attempts=1)


def measure(plan: Plan) -> Report:
    ledger = Ledger(lease_ms=LEASE_MS)
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        meter = Meter(redis)
        found = {
            "calls": [*life(meter, ledger, plan), sweeps(meter, ledger, plan)],
            "events": list(steps(meter, ledger, plan)),
            "streams": list(streams(redis, ledger, plan)),
        }
    return {"benchmark": "ledger", "plan": asdict(plan), "conditions": conditions(), **found}


def tables(report: Report) -> Iterator[Table]:
    for name in ("calls", "events", "streams"):
        rows = report[name]
        yield Table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
