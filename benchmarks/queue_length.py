"""What the calls cost that meet a long queue, by its length.

    python -m benchmarks.queue_length [--write]

The queue is filled by a script in Redis, which copies a job that was submitted as any other. Redis counts the
commands, those of scripts included, and the bytes. Late and lost are one job each, accepted after all the
others: it is counted how many sweeps pass, one a second, until its deadline or its lost message is noticed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep, time
from typing import Any

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.meter import Meter
from benchmarks.report import Table, across
from llama_herd.errors import JobNotFound
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS, sweep_tenant
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name

PROMPT = "x" * 400
MODEL = "tales"
#: The queue of the lost job alone: its list is empty.
OTHER = "herd.other"
#: The job that is copied; its id occurs nowhere else in its message.
ORIGINAL = "the-first-of-all"
#: So long that no lease ends during a measurement.
LEASE_MS = 60_000
#: Jobs that one call of the script adds.
LOT = 10_000

FILL = """
local job, pending, line, waiting, queue = unpack(KEYS)
local id, before, after, first, last = unpack(ARGV)
local pattern = string.gsub(id, '%-', '%%-')
local envelope, tokens = unpack(redis.call('HMGET', job, 'envelope', 'tokens'))
local message, since = redis.call('LINDEX', queue, -1), redis.call('ZSCORE', pending, id)
local has_line = redis.call('EXISTS', line) == 1
for number = first, last do
  local name = 'copy-' .. number
  redis.call('COPY', job, before .. name .. after)
  redis.call('HSET', before .. name .. after, 'envelope', (string.gsub(envelope, pattern, name)))
  redis.call('LPUSH', queue, (string.gsub(message, pattern, name)))
  redis.call('ZADD', pending, since, name)
  if has_line then redis.call('ZADD', line, since, name) end
end
redis.call('HINCRBY', waiting, queue .. ':jobs', last - first + 1)
redis.call('HINCRBY', waiting, queue .. ':tokens', tokens * (last - first + 1))
"""


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (1_000, 100_000)
    num_calls: int = 20
    #: A sweep does not look at younger jobs.
    waiting_s: float = SWEEP_PATIENCE_MS / 1000


def cost(redis: Redis, acts: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Mean of an act."""
    meter = Meter(redis)
    empty = meter.spent(lambda: None)  # what the look itself costs is taken away
    spent = meter.spent(lambda: [act() for act in acts]) - empty
    return {
        "commands": round(max(0.0, spent.commands) / len(acts), 1),
        "bytes": round(max(0.0, spent.num_bytes) / len(acts)),
        "CPU of Redis, us": round(1e6 * max(0.0, spent.redis_cpu_s) / len(acts)),
    }


class LongQueue:
    """A tenant with one long queue, and nobody who takes from it."""

    def __init__(self, redis: Redis, client: Client) -> None:
        self.redis: Any = redis
        self.client = client
        self.ledger = Ledger(lease_ms=LEASE_MS)
        self.queue = queue_name(MODEL)
        self._numbers = iter(range(1, 1 << 40))

    def fill(self, length: int) -> None:
        self.submit(ORIGINAL)
        names = ("pending", f"pending:{self.queue}", "waiting")
        keys = (self.ledger.job_key(ORIGINAL), *map(self.ledger.key, names), self.queue)
        before, _, after = self.ledger.job_key("\0").partition("\0")
        fill = self.redis.register_script(FILL)
        for first in range(1, length, LOT):
            fill(keys, (ORIGINAL, before, after, first, min(first + LOT, length) - 1))

    def submit(self, job_id: str, **fields: Any) -> str:
        return self.client.submit(prompt=PROMPT, model=MODEL, job_id=job_id, **fields)

    def new(self, **fields: Any) -> str:
        return self.submit(f"new-{next(self._numbers)}", **fields)

    def claim_next(self) -> None:
        """As a worker does that has just taken the message."""
        message = json.loads(self.redis.rpop(self.queue))
        run_call(self.redis, self.ledger.claim(message["headers"]["id"], "owner", queue=self.queue))

    def purge_nothing(self) -> None:
        try:
            self.client.purge("nobody")
        except JobNotFound:
            return
        raise AssertionError("a job that never was")

    def sweep(self) -> None:
        """A sweep that is due, however soon after the last one."""
        last_ms = int(1000 * time()) - LEASE_MS // 2
        self.redis.hset(self.ledger.key("sweep"), mapping={"last": last_ms, "hold": 0})
        run_call(self.redis, sweep_tenant(self.ledger))

    def add_lost(self, job_id: str) -> None:
        job = GenerationJob(prompt=PROMPT, model="other")
        run_call(self.redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, OTHER)))
        self.redis.delete(OTHER)

    def is_back(self) -> bool:
        return bool(self.redis.exists(OTHER))

    def has_ended(self, job_id: str) -> bool:
        record = run_call(self.redis, self.ledger.record(job_id))
        return record is not None and record.is_final

    def num_sweeps(self, signs: Mapping[str, Callable[[], bool]], most: int) -> dict[str, int]:
        """The number of the sweep after which each sign is there."""
        self.redis.hset(self.ledger.key("sweep"), "offset", 0)  # those that came last are looked at last
        noticed: dict[str, int] = {}
        for number in range(1, most + 1):
            self.sweep()
            for what, is_there in signs.items():
                if what not in noticed and is_there():
                    noticed[what] = number
            if len(noticed) == len(signs):
                return {what: noticed[what] for what in signs}
        raise AssertionError(f"within {most} sweeps only {noticed}")


#: By what is counted, and by call.
Costs = Mapping[str, Mapping[str, float]]


def costs(length: int, plan: Plan) -> Costs:
    """At one length of the queue; also after how many sweeps what is wrong is noticed."""
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Client(server.url, model=MODEL) as client,
    ):
        queue = LongQueue(redis, client)
        queue.fill(length)
        queue.add_lost("lost")
        num = range(plan.num_calls)
        waiting, ended = [queue.new() for _ in num], [queue.new() for _ in num]
        for job_id in ended:
            client.cancel(job_id)
        queue.submit("late", deadline_ms=int(1000 * (time() + plan.waiting_s)))
        acts: dict[str, list[Callable[[], object]]] = {
            "submit": [queue.new for _ in num],
            "take and claim": [queue.claim_next for _ in num],
            "place": [partial(client.place, one) for one in waiting],
            "purge a waiting job": [partial(client.purge, one) for one in waiting],
            "purge an ended job": [partial(client.purge, one) for one in ended],
            "purge an unknown id": [queue.purge_nothing for _ in num],
            "list 40 jobs": [partial(client.jobs, limit=40) for _ in num],
            "status": [client.status for _ in num],
        }
        calls = {name: cost(redis, of_it) for name, of_it in acts.items()}
        sleep(plan.waiting_s)
        signs: dict[str, Callable[[], bool]] = {
            "a deadline": partial(queue.has_ended, "late"),
            "a lost message": queue.is_back,
        }
        noticed = queue.num_sweeps(signs, length // 100 + 10)
        calls["sweep"] = cost(redis, [queue.sweep for _ in num])
    counted = {what: {call: one[what] for call, one in calls.items()} for what in calls["sweep"]}
    return {**counted, "sweeps until it is noticed": noticed}


def measure(plan: Plan) -> Iterator[Table]:
    runs = {f"{length:,} queued": costs(length, plan) for length in plan.lengths}
    for what in next(iter(runs.values())):
        yield across(what, {head: run[what] for head, run in runs.items()})


BENCHMARK = Benchmark("queue_length", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
