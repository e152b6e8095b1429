"""A random walk over all scripts: whatever they do in turn, lists and counts agree with the records."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger import held_jobs
from llama_herd.tasks.ledger.answers import Settled
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import Outbox
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import FAILURE, QUEUE, Herd, end, started, sweep, token

pytestmark = pytest.mark.redis

JOBS = ("a", "b.c", "batch-r-1", "d")
QUEUES = (QUEUE, "herd.other")
LIVE = ("queued", "running")
#: Fields of jobs that have ended.
OF_ENDED = {"ended_ms", "settled", "settling", "sent_links", "life_ms", "kept", "kept_result"}
HOUR_MS = 3_600_000
PREFIX = "herd:default:"
#: What is counted of each queue.
WAITING = ("jobs", "tokens", "delayed", "delayedtokens")


class Walk:
    """Steps of producers, workers, operators, senders of webhooks and time, drawn from a seed."""

    def __init__(self, redis: Any, seed: int) -> None:
        redis.flushdb()
        redis.hset(f"{PREFIX}webhook", "jobs", 1)
        self.redis, self.draw = redis, Random(seed)
        self.herd = Herd(redis, Ledger(lease_ms=60_000))
        self.ledger = self.herd.ledger
        #: Bytes of records that have expired: they count until their hour.
        self.expired_bytes = 0

    def record(self, job_id: str) -> dict[str, str]:
        fields = self.redis.hgetall(self.ledger.job_key(job_id))
        return {name.decode(): value.decode() for name, value in fields.items()}

    def step(self) -> None:
        job_id = self.draw.choice(JOBS)
        of_live = (self.release, self.put_back, self.renew, self.prepare, self.fall_silent, self.be_due)
        of_ended = (self.settle, self.store, self.owe, self.pay, self.expire)
        of_any = (self.submit, self.submit_many, self.bring, self.cancel, self.purge, self.send, self.sweep)
        of_late = (self.ask, self.settle, self.owe, self.pay)  # of an earlier job of the same id
        more = (self.claim, self.claim, self.claim, self.emit, self.emit, self.emit, self.pay_all)
        is_over = self.record(job_id).get("state") not in LIVE
        steps: tuple[Callable[[str], object], ...] = (
            *(of_any + more),
            *(of_ended if is_over else of_live * 2 + of_late),
        )
        self.draw.choice(steps)(job_id)

    def job(self) -> GenerationJob:
        now_ms = 1000 * self.redis.time()[0]
        soon_ms, late_ms = now_ms + HOUR_MS, now_ms + 2 * HOUR_MS
        times = ((None, None), (None, 1), (1, late_ms), (soon_ms, None), (soon_ms, late_ms))
        not_before, deadline_ms = self.draw.choice(times)
        return GenerationJob(
            prompt="x" * self.draw.randint(1, 50),
            priority=self.draw.choice((-1, 0, 0, 1)),
            not_before=not_before,
            deadline_ms=deadline_ms,
            keep_s=self.draw.choice((None, 60, 10**5, 10**7)),
        )

    def run(self, call: RedisCall[Any]) -> Any:
        return run_call(self.redis, call)

    def submit(self, job_id: str) -> None:
        self.run(self.ledger.submit(job_id, self.job(), self.envelope(job_id)))

    def submit_many(self, _: str) -> None:
        some = self.draw.sample(JOBS, 2)
        self.run(
            self.ledger.submit_many(
                [self.ledger.submit_item(one, self.job(), self.envelope(one)) for one in some]
            )
        )

    def envelope(self, job_id: str) -> Envelope:
        return Envelope.for_job(job_id, self.draw.choice(QUEUES))

    def claim(self, job_id: str) -> None:
        self.herd.claim(job_id, self.draw.choice(("one", "two")))

    def bring(self, job_id: str) -> None:
        self.run(self.ledger.claim(job_id, "one", job=self.job(), envelope=self.envelope(job_id)))

    def held(self, job_id: str) -> tuple[str, str, int]:
        """The job with its owner and epoch, or at times with an older one."""
        record = self.record(job_id)
        epoch = int(record.get("epoch", 0)) - (self.draw.random() < 0.1)
        return job_id, record.get("owner", "one"), max(0, epoch)

    def emit(self, job_id: str) -> None:
        _, owner, epoch = self.held(job_id)
        record = self.record(job_id)
        seq, n = int(record.get("seq", 0)) + 1, int(record.get("n", 0))
        entries = (
            started(job_id, seq, epoch, n),
            token(job_id, seq, n, epoch=epoch),
            end(job_id, seq, n, epoch),
        )
        self.herd.emit(owner, self.draw.choice(entries))

    def release(self, job_id: str) -> None:
        push, has_died = self.draw.random() < 0.5, self.draw.random() < 0.3
        self.run(self.ledger.release(*self.held(job_id), push=push, has_died=has_died))

    def put_back(self, job_id: str) -> None:
        seq = int(self.record(job_id)["seq"])
        delay_ms = self.draw.choice((0, HOUR_MS))
        self.run(self.ledger.retry(*self.held(job_id), seq=seq, delay_ms=delay_ms, left=1, error=FAILURE))

    def renew(self, job_id: str) -> None:
        self.herd.renew(*self.held(job_id))

    def prepare(self, job_id: str) -> None:
        _, owner, epoch = self.held(job_id)
        job = held_jobs.HeldJob(self.ledger, job_id, epoch)
        self.run(held_jobs.prepare(owner, [job], is_done=self.draw.random() < 0.5))

    def fall_silent(self, job_id: str) -> None:
        if self.record(job_id)["state"] == "running":
            self.draw.choice((self.herd.fall_silent, self.herd.pass_lease))(job_id)

    def be_due(self, job_id: str) -> None:
        if self.redis.zscore(f"{PREFIX}delayed", job_id) is not None:
            field = "retry_ms" if "retry_ms" in self.record(job_id) else "due_ms"
            self.redis.hset(self.ledger.job_key(job_id), field, 1)
            for name in ("pending", "delayed"):
                self.redis.zadd(f"{PREFIX}{name}", {job_id: 1})

    def cancel(self, job_id: str) -> None:
        self.run(self.ledger.cancel(job_id, self.draw.choice(("cancelled", "deadline"))))

    def purge(self, job_id: str) -> None:
        self.run(self.ledger.purge(job_id, mark=self.draw.random() < 0.3))

    def sweep(self, _: str) -> None:
        sweep(self.herd)

    def ask(self, job_id: str) -> None:
        assert self.run(self.ledger.settling(job_id, "finisher", 1000)) == Settled()

    def settle(self, job_id: str) -> None:
        self.run(self.ledger.settle(job_id))

    def store(self, job_id: str) -> None:
        if self.record(job_id).get("state") in ("done", "failed"):
            text = "y" * self.draw.randint(1, 3000)
            self.redis.set(self.ledger.result_key(job_id), text, ex=self.draw.choice((1000, 10**5)))

    def owe(self, job_id: str) -> None:
        self.run(self.ledger.owe(job_id, 0, has_sent_links=self.draw.random() < 0.5))

    def pay_all(self, _: str) -> None:
        for job in self.run(self.ledger.owed(10, 0)):
            self.run(self.ledger.settle(job.job_id, is_elsewhere=True))

    def pay(self, job_id: str) -> None:
        self.run(self.ledger.settle(job_id, is_elsewhere=True))

    def expire(self, job_id: str) -> None:
        self.expired_bytes += self.kept_bytes(job_id)
        self.redis.delete(self.ledger.job_key(job_id), self.ledger.events_key(job_id))

    def send(self, job_id: str) -> None:
        outbox = Outbox()
        for entry in self.run(outbox.due(5, self.draw.choice((0, HOUR_MS)))):
            outcomes = (outbox.sent(entry), outbox.put_off(entry.failed("no"), 5), outbox.give_up(entry))
            self.run(self.draw.choice(outcomes))
        self.run(outbox.retry([f"msg_{job_id.replace('.', '~')}"]))

    def kept_bytes(self, job_id: str) -> int:
        record = self.record(job_id)
        noted = (record[name] for name in ("kept", "kept_result") if name in record)
        return sum(int(one.partition("/")[2]) for one in noted)

    def numbers(self, name: str) -> dict[str, int]:
        """The counts in a hash of the tenant."""
        fields = self.redis.hgetall(PREFIX + name)
        return {field.decode(): int(float(value)) for field, value in fields.items()}

    def check(self) -> None:
        waiting = Counter[str]()
        for job_id in JOBS:
            waiting += self.checked(job_id)
        counts = self.numbers("waiting")
        names = [f"{queue}:{what}" for queue in QUEUES for what in WAITING]
        assert [counts.get(name, 0) for name in names] == [waiting[name] for name in names]
        kept = self.numbers("kept")
        assert kept.get("bytes", 0) == sum(num for name, num in kept.items() if name.isdigit())
        assert kept.get("bytes", 0) == self.expired_bytes + sum(map(self.kept_bytes, JOBS))
        listed = [
            one for name in ("outbox", "outbox:dead") for one in self.redis.zrange(PREFIX + name, 0, -1)
        ]
        assert sorted(listed) == sorted(self.redis.hkeys(f"{PREFIX}outbox:entries"))

    def checked(self, job_id: str) -> Counter[str]:
        """Hold the lists and lives of a job to its record. Returns what it counts for while it waits."""
        record = self.record(job_id)
        state, queue, lane = (record.get(name, "") for name in ("state", "queue", "lane"))
        lists = ("pending", "delayed", f"pending:{queue}{lane}", "pending:deadlines", "leases")
        is_in = {name: self.redis.zscore(PREFIX + name, job_id) is not None for name in lists}
        pending, delayed, line, deadlines, leases = is_in.values()
        assert (pending, leases) == (state == "queued", state == "running")
        assert (delayed + line, delayed and line) == (pending, False)
        assert deadlines or not pending or "deadline_ms" not in record
        life_s, events_life_s = (
            self.redis.ttl(key) for key in (self.ledger.job_key(job_id), self.ledger.events_key(job_id))
        )
        assert (life_s > 0) == (bool(record) and state not in LIVE)
        assert state not in LIVE or not record.keys() & OF_ENDED
        assert events_life_s == -2 or state == "queued" or abs(life_s - events_life_s) <= 1
        if not pending:
            return Counter()
        tokens = int(record["tokens"])
        counts = zip(WAITING, (1, tokens, delayed, delayed * tokens), strict=True)
        return Counter({f"{queue}:{what}": num for what, num in counts})

    def end_all(self) -> None:
        """Let all jobs end, be told and be forgotten."""
        for job_id in JOBS:
            if self.record(job_id).get("state") == "running":
                self.herd.fall_silent(job_id)
            self.run(self.ledger.cancel(job_id))  # without the moment that a late one's owner has
            for step in (self.purge, self.pay, self.purge, self.sweep):
                step(job_id)


@pytest.mark.parametrize("num_walks", [2, pytest.param(12, marks=pytest.mark.long)])
def test_lists_and_counts_agree_with_the_records_whatever_was_done(redis: Redis, num_walks: int) -> None:
    for seed in range(num_walks):
        walk = Walk(redis, seed)
        for _ in range(150):
            walk.step()
            walk.check()
        walk.end_all()
        walk.check()
        left = {key.decode().removeprefix(PREFIX) for key in walk.redis.keys(f"{PREFIX}*")}
        left -= {f"{{{job_id}}}:job" for job_id in JOBS}  # that it was purged
        # Lists may name what has expired, and the deadline of a job that its silent owner has ended.
        assert left <= {"sweep", "kept", "webhook", "ended", "failed", "pending:deadlines"}
