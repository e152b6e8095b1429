"""What the calls of the ledger cost: round trip, and the CPU time of Redis.

    python -m benchmarks.ledger [--write]

Calls run one after the other over one connection to a Redis of their own, as those of a worker do; the
tokens of a step are one call for all its jobs. A prompt has 400 characters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, sleep, time
from typing import Any

from redis import Redis

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.events import End, Event, Started, Token
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.entry import Entry
from llama_herd.tasks.ledger.ledger import SWEEP_PATIENCE_MS, Ledger
from llama_herd.tasks.ledger.redis_call import Call, run, run_many
from llama_herd.tasks.message import Envelope

JOB = GenerationJob(prompt="x" * 400, model="tales")
OWNER = "owner"

#: So long that no lease ends during a measurement.
LEASE_MS = 60_000


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 1000
    batches: Sequence[int] = (1, 64, 256)
    num_steps: int = 200
    num_waiting: int = 50_000
    num_sweeps: int = 21
    #: A sweep does not look at younger jobs.
    waiting_s: float = SWEEP_PATIENCE_MS / 1000


class Meter:
    """Runs calls and measures the cost of each."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def cost(self, what: str, calls: Sequence[Call[Any]]) -> dict[str, str | float]:
        """Mean of a call in microseconds."""
        cpu_s, started_s = self._cpu_s(), perf_counter()
        for call in calls:
            run(self.redis, call)
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
        meter.cost("claim", [ledger.claim(job_id, OWNER) for job_id in ids]),
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


def steps(meter: Meter, ledger: Ledger, plan: Plan) -> Iterator[dict[str, str | float]]:
    """A step's tokens, one for each job of the batch."""
    for num_rows in plan.batches:
        ids = [f"row-{num_rows}-{number}" for number in range(num_rows)]
        run_many(meter.redis, [_submit(ledger, job_id) for job_id in ids])
        run_many(meter.redis, [ledger.claim(job_id, OWNER) for job_id in ids])
        run(meter.redis, _emit(ledger, [_started(job_id) for job_id in ids]))
        tokens = [_emit(ledger, [_token(job_id, i) for job_id in ids]) for i in range(plan.num_steps)]
        yield meter.cost(f"a token of each of {num_rows} jobs", tokens)


def sweeps(meter: Meter, ledger: Ledger, plan: Plan) -> dict[str, str | float]:
    """The median of sweeps over a backlog. The time of the last sweep is set back, so that each one runs."""
    for start in range(0, plan.num_waiting, 1000):
        ids = [f"waiting-{number}" for number in range(start, min(start + 1000, plan.num_waiting))]
        run_many(meter.redis, [_submit(ledger, job_id) for job_id in ids])
    sleep(plan.waiting_s)
    costs = []
    for _ in range(plan.num_sweeps):
        last_ms = int(1000 * time()) - LEASE_MS // 2
        meter.redis.hset(ledger.key("sweep"), mapping={"last": last_ms, "hold": 0})
        costs.append(meter.cost(f"a sweep with {plan.num_waiting:,} waiting", [ledger.sweep()]))
    return sorted(costs, key=lambda cost: cost["us"])[plan.num_sweeps // 2]


def _submit(ledger: Ledger, job_id: str) -> Call[Any]:
    return ledger.submit(job_id, JOB, Envelope.of(job_id, "herd.tales"))


def _emit(ledger: Ledger, events: Sequence[Event]) -> Call[Any]:
    return ledger.emit(OWNER, [Entry.of(event, max(0, event.seq - 2)) for event in events])


def _started(job_id: str) -> Started:
    return Started(seq=1, job=job_id, epoch=1, attempt=1, worker="w", model="tales", seed=7)


def _token(job_id: str, i: int) -> Token:
    return Token(seq=2 + i, job=job_id, epoch=1, i=i, ids=(i,), text=" word")


def _end(job_id: str) -> End:
    return End(seq=2, job=job_id, epoch=1, finish_reason="stop", n=0, attempts=1)


def measure(plan: Plan) -> Report:
    ledger = Ledger(lease_ms=LEASE_MS)
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        meter = Meter(redis)
        calls = [*life(meter, ledger, plan), *steps(meter, ledger, plan), sweeps(meter, ledger, plan)]
    return {"benchmark": "ledger", "plan": asdict(plan), "conditions": conditions(), "calls": calls}


def tables(report: Report) -> Iterator[Table]:
    calls = report["calls"]
    yield Table(list(calls[0]), [list(call.values()) for call in calls])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
