"""A ledger with a connection, and the short hand that its tests are written in."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from llama_herd.tasks.ledger.answers import (
    Adopt,
    ClaimAnswer,
    Claimed,
    Emission,
    Emitted,
    Renewed,
    Swept,
    Yours,
)
from llama_herd.tasks.ledger.held_jobs import EmitEntry, HeldJob, TenantEntry, emit, renew
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import sweep_tenant
from llama_herd.tasks.protocol.events import End, Event, Failure, FinishReason, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from tests.chaos.harness.patience import wait_until

QUEUE = "herd.tales"
SWEEP = "herd:default:sweep"
JOB = GenerationJob(prompt="the secret prompt", model="tales")
FAILURE = Failure(code="out_of_memory", message="no room")


@dataclass(frozen=True)
class Herd:
    """Two or more workers and a client, as far as Redis sees them."""

    redis: Any  # redis-py types each reply as text or bytes or nothing
    ledger: Ledger

    def submit(self, job_id: str, job: GenerationJob = JOB) -> None:
        queue = queue_name("tales", self.ledger.tenant)
        run_call(self.redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))

    def wait_for_listener(self, job_id: str) -> None:
        """Wait until somebody has subscribed to a job's channel."""
        channel = self.ledger.channel(job_id)
        wait_until(lambda: self.redis.pubsub_numsub(channel)[0][1] == 1, f"somebody listens to {job_id}")

    def claim(self, job_id: str, owner: str = "one") -> ClaimAnswer:
        return run_call(self.redis, self.ledger.claim(job_id, owner))

    def claimed(self, job_id: str, owner: str = "one") -> Claimed:
        """Claim a job that is there to be had."""
        answer = self.claim(job_id, owner)
        assert isinstance(answer, Yours | Adopt)
        return answer

    def emit(self, owner: str, *entries: EmitEntry) -> list[Emitted]:
        own = [TenantEntry(self.ledger, entry) for entry in entries]
        return run_call(self.redis, emit(owner, own, self.ledger))

    def renew(self, job_id: str, owner: str, epoch: int = 1) -> Renewed:
        [answer] = run_call(self.redis, renew(owner, [HeldJob(self.ledger, job_id, epoch)], self.ledger))
        return answer

    def kinds(self, owner: str, *entries: EmitEntry) -> list[Emission]:
        return [answer.kind for answer in self.emit(owner, *entries)]

    def put_back(self, job_id: str, owner: str = "one", epoch: int = 1, **given: Any) -> Emitted:
        """Put a job back whose attempt has failed, to be tried again in an hour and twice more after that."""
        terms = {"seq": 0, "delay_ms": 3_600_000, "left": 2, "error": FAILURE, **given}
        return run_call(self.redis, self.ledger.retry(job_id, owner, epoch, **terms))

    def events(self, job_id: str) -> list[Event]:
        return run_call(self.redis, self.ledger.read(job_id))

    def field(self, job_id: str, name: str) -> str:
        return str(self.redis.hget(self.ledger.job_key(job_id), name).decode())

    def fall_silent(self, job_id: str) -> None:
        """Let a job's lease be over, as if its owner had not been heard of for so long."""
        self.redis.hset(self.ledger.job_key(job_id), "lease", 1)
        self.redis.zadd("herd:default:leases", {job_id: 1}, xx=True)

    def pass_lease(self, job_id: str) -> None:
        """Let a job's lease be over, and its owner given up by a sweep."""
        self.fall_silent(job_id)
        self.redis.zadd("herd:default:leases", {job_id: 2}, xx=True)

    def pass_time(self, job_id: str, ms: int) -> None:
        """Let a job wait since `ms` earlier than it does."""
        for index in ("herd:default:pending", self.line_of(job_id)):
            if self.redis.zscore(index, job_id) is not None:
                self.redis.zincrby(index, -ms, job_id)

    def line_of(self, job_id: str) -> str:
        """Key of the waiting jobs whose messages are in the same list."""
        queue, lane = self.redis.hmget(self.ledger.job_key(job_id), "queue", "lane")
        return "herd:default:pending:" + (queue or b"").decode() + (lane or b"").decode()

    def messages(self, key: str = QUEUE) -> list[bytes]:
        """The queue, or another list of it, its consuming end first."""
        return list(reversed(self.redis.lrange(key, 0, -1)))


def started(job_id: str, seq: int = 1, epoch: int = 1, i: int = 0, *, texts: int | None = None) -> EmitEntry:
    event = Started(
        at_ms=1, seq=seq, job=job_id, epoch=epoch, attempt=1, worker="w", model="tales", seed=7, texts=texts
    )
    return EmitEntry.from_event(event, i)


def token(job_id: str, seq: int, i: int, *ids: int, epoch: int = 1) -> EmitEntry:
    """An event with `ids` (by default one), whose text names seq and epoch."""
    ids = ids or (100 + i,)
    return EmitEntry.from_event(
        Token(seq=seq, job=job_id, epoch=epoch, i=i, ids=ids, text=f"<{seq}.{epoch}>"), i
    )


def end(job_id: str, seq: int, n: int, epoch: int = 1, finish_reason: FinishReason = "stop") -> EmitEntry:
    event = End(seq=seq, job=job_id, epoch=epoch, finish_reason=finish_reason, n=n, attempts=1)
    return EmitEntry.from_event(event, n)


def ids(herd: Herd, key: str = QUEUE) -> list[str]:
    """The jobs whose messages are in the queue, or in another list of it, its consuming end first."""
    return [json.loads(message)["headers"]["id"] for message in herd.messages(key)]


def let_sweep_be_due(herd: Herd) -> None:
    """Let the last sweep have been a second ago, in the ordinary course of things."""
    now_s = herd.redis.time()[0]
    herd.redis.hset(SWEEP, mapping={"last": (now_s - 11) * 1000, "hold": 0, "gaps": 0})


def sweep(herd: Herd) -> Swept:
    let_sweep_be_due(herd)
    return run_call(herd.redis, sweep_tenant(herd.ledger))


#: Keys by which gateways ask each second whether a batch or a file is due.
OF_FEEDERS = ("herd:batches@", "herd:files@")


def commands(redis: Any, act: Callable[[], object], *, by_scripts: bool) -> list[str]:
    """The commands that Redis runs meanwhile: those of scripts, or those of clients.

    What gateways of other tests ask each second is left out.
    """
    with redis.monitor() as monitor:
        act()
        redis.echo("heard all")
        heard = list(takewhile(lambda one: one["command"] != "ECHO heard all", monitor.listen()))
    looks = [one for one in heard if any(key in one["command"] for key in OF_FEEDERS)]
    # A feeder has a connection of its own, by which it also loads the scripts that Redis has forgotten.
    feeders = {one["client_port"] for one in looks if one["client_type"] != "lua"}
    ours = [one for one in heard if one not in looks and one["client_port"] not in feeders]
    ours = [one for one in ours if one["command"] not in ("PING", "HGETALL herd:webhooks")]
    return [one["command"] for one in ours if (one["client_type"] == "lua") == by_scripts]


def age_messages(herd: Herd, ms: int, key: str = QUEUE) -> None:
    """Let the messages in a list have been pushed so much earlier."""
    texts = herd.redis.lrange(key, 0, -1)
    herd.redis.delete(key)
    for text in texts:
        tag = json.loads(text)["properties"]["delivery_tag"]
        name, number, pushed = tag.rsplit(":", 2)
        herd.redis.rpush(key, text.replace(tag.encode(), f"{name}:{number}:{int(pushed) - ms}".encode()))
