"""How soon a dead worker's jobs go on: when all are first in the queue, when a worker with room has them.

    python -m benchmarks.takeover [--write]

The model is a stand-in that costs nothing, so that a thousand rows run on a small machine. One worker holds
the jobs and is killed. Another serves another model, and sweeps. A third has as much room as is needed; it is
frozen until the jobs are back, else those that wait behind them would fill it up.
"""

import json
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.harness import Benchmark, main, merged, percentile
from benchmarks.report import Row, Table
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.sabotage import Sabotage
from tests.local.tended_worker import TendedWorker

#: Tokens of a job: so many that none ends before it is measured.
SAMPLING = {"max_tokens": 80, "temperature": 0.8, "ignore_eos": True}
STEP_S = 0.5

#: Size of the cache of a worker with 1,024 rows: two pages each.
KV_CACHE_TOKENS = 1024 * 128

#: More than the prompts of all rows have: none has to wait until others are passed over.
MANY = 65_536

#: Jobs that are submitted in one round trip.
NUM_AT_ONCE = 1000


@dataclass(frozen=True)
class Plan:
    in_hand: tuple[int, ...] = (16, 256, 1024)
    num_waiting: int = 50_000
    rounds: int = 5


#: `back`: from the kill until all are first in the queue. `claimed after`: from then until all are claimed.
Times = dict[str, float]


def take_over(num_jobs: int, num_waiting: int) -> Times:
    """Kill a worker with this many jobs in hand, while others wait in the queue."""
    with (
        tempfile.TemporaryDirectory(prefix="herd-takeover-") as logs,
        FragileRedis() as server,
        Herd(server, BUNDLED_MODEL, Path(logs), kv_cache_tokens=KV_CACHE_TOKENS) as herd,
    ):
        heir = _frozen(herd, slots=num_jobs)
        owner = _worker(herd, slots=num_jobs - NUM_LOOK_AHEAD)
        sweeper = _worker(herd, slots=1, model_name="another")
        for worker in (owner, sweeper):
            herd.wait_until_ready(worker)
        job_ids = submit(herd, "held", num_jobs)
        herd.jobs.wait_for(job_ids, "epoch", 1)
        herd.jobs.wait_for(job_ids[: num_jobs - NUM_LOOK_AHEAD], "n", 1)
        submit(herd, "waits", num_waiting)
        return _killed(herd, owner, heir, job_ids)


def submit(herd: Herd, prefix: str, num_jobs: int) -> list[str]:
    """Submit jobs, many in one round trip."""
    job = GenerationJob.parse({"prompt": "a tale", "sampling": SAMPLING}, herd.settings)
    job_ids = [f"{prefix}-{number}" for number in range(num_jobs)]
    for start in range(0, num_jobs, NUM_AT_ONCE):
        lot = job_ids[start : start + NUM_AT_ONCE]
        calls = [herd.jobs.ledger.submit(one, job, Envelope.for_job(one, herd.queue)) for one in lot]
        run_calls(herd.jobs.redis, calls)
    return job_ids


def _killed(herd: Herd, owner: TendedWorker, heir: TendedWorker, job_ids: list[str]) -> Times:
    owner.kill()
    killed_s, expected = monotonic(), set(job_ids)
    wait_until(lambda: set(first_in_queue(herd, len(expected))) == expected, "all are first in the queue")
    back_s = monotonic()
    heir.signal(signal.SIGCONT)
    herd.jobs.wait_for(job_ids, "epoch", 2)
    return {"back": back_s - killed_s, "claimed after": monotonic() - back_s}


def first_in_queue(herd: Herd, num_messages: int) -> list[str]:
    """The ids of the messages that are taken next."""
    messages = herd.jobs.redis.lrange(herd.queue, -num_messages, -1)
    return [json.loads(message)["headers"]["id"] for message in messages]


def _worker(herd: Herd, slots: int, **settings: Any) -> TendedWorker:
    sabotage = Sabotage(stand_in=True, step_s=STEP_S)
    return herd.start_worker(sabotage=sabotage, slots=slots, prefill_tokens=MANY, silence_s=600, **settings)


def _frozen(herd: Herd, slots: int) -> TendedWorker:
    """A worker that asks for no messages and is in no list, so that no other worker counts on it."""
    worker = herd.wait_until_ready(_worker(herd, slots))
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: not herd.jobs.redis.info("clients")["blocked_clients"], "it waits for no message")
    herd.jobs.redis.delete(herd.jobs.ledger.key("workers"))
    return worker


def row(num_jobs: int, plan: Plan) -> Row:
    times_s = merged([take_over(num_jobs, plan.num_waiting) for _ in range(plan.rounds)])
    shares = {
        f"{name} p{percent} s": percentile(found, percent)
        for name, found in times_s.items()
        for percent in (50, 99)
    }
    return {"jobs in hand": num_jobs, **shares}


def measure(plan: Plan) -> Iterator[Table]:
    title = f"A worker dies with a lease of 3 s, {plan.num_waiting:,} jobs wait behind its own"
    yield Table([row(num_jobs, plan) for num_jobs in plan.in_hand], title)


BENCHMARK = Benchmark("takeover", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
