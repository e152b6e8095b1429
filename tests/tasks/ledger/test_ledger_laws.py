"""The ledger against a model of it: whatever two workers, a client and time do, the log stays one log."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from llama_herd.tasks.ledger import held_jobs
from llama_herd.tasks.ledger.answers import Adopt, Busy, Cancellation, Early, Ended, Release, Yours
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import sweep_tenant
from llama_herd.tasks.protocol.events import End, Failure, Token, parse_event
from llama_herd.tasks.protocol.result import Result
from tests.tasks.herd import QUEUE, Herd, end, started, token

pytestmark = pytest.mark.redis

OWNERS = st.sampled_from(["one", "two"])
JOBS = st.sampled_from(["a", "b"])
MAX_DEATHS = 3
SOUND_TOKENS = 2


@dataclass
class Held:
    """What a worker believes of a job that it claimed: it may be long out of date."""

    job_id: str
    owner: str
    epoch: int
    seq: int
    n: int


@dataclass
class Truth:
    """What must be so of one job."""

    owner: str | None = None
    epoch: int = 0
    is_lease_over: bool = True
    is_given_up: bool = True
    is_final: bool = False
    is_cancelled: bool = False
    deaths: int = 0
    put_back: int = 0  # claim under which its attempt failed, until the next one
    is_early: bool = False
    retries: int = 0
    preparing: int = 0  # claim under which a worker prepares it
    computing: int = 0  # claim under which one computes it
    started_n: int = 0
    n: int = 0
    log: list[bytes] = field(default_factory=list)

    @property
    def num_deaths(self) -> int:
        """Workers that have died of it, if its owner is dead."""
        is_at_risk = self.owner is not None and self.epoch in (self.preparing, self.computing)
        return self.deaths + is_at_risk


class LedgerMachine(RuleBasedStateMachine):
    """Workers hold claims, old and new ones, and use them in any order."""

    redis: Any
    held = Bundle("held")

    @initialize()
    def submit(self) -> None:
        self.redis.flushall()
        self.herd = Herd(
            self.redis, Ledger(lease_ms=60_000, max_deaths=MAX_DEATHS, sound_tokens=SOUND_TOKENS)
        )
        self.truth = {"a": Truth(), "b": Truth()}
        for job_id in self.truth:
            self.herd.submit(job_id)

    @rule(target=held, job_id=JOBS, owner=OWNERS)
    def claim(self, job_id: str, owner: str) -> Held:
        truth = self.truth[job_id]
        answer = self.herd.claim(job_id, owner)
        if truth.is_final:
            assert answer is Ended.FINISHED
        elif truth.is_cancelled:
            assert answer is Ended.CANCELLED
            self.ended_by_script(job_id)
        elif truth.owner and not truth.is_given_up:
            assert isinstance(answer, Adopt if truth.owner == owner else Busy)
        elif truth.is_early:
            assert isinstance(answer, Early)
        elif truth.num_deaths >= MAX_DEATHS:
            assert answer is Ended.POISON
            self.ended_by_script(job_id)
        else:
            assert isinstance(answer, Yours)
            truth.deaths = truth.num_deaths
            truth.epoch += 1
            truth.owner, truth.is_lease_over, truth.is_given_up = owner, False, False
            truth.put_back = 0
            assert answer.retries == truth.retries
            assert (answer.epoch, answer.seq, answer.n) == (truth.epoch, len(truth.log), truth.n)
            assert answer.deaths == truth.deaths
        if isinstance(answer, Yours | Adopt):
            return Held(job_id, owner, answer.epoch, answer.seq, answer.n)
        return Held(job_id, owner, truth.epoch, len(truth.log), truth.n)

    @rule(held=held, is_done=st.booleans())
    def prepare(self, held: Held, is_done: bool) -> None:
        own = held_jobs.HeldJob(self.herd.ledger, held.job_id, held.epoch)
        call = held_jobs.prepare(held.owner, [own], is_done=is_done)
        truth = self.truth[held.job_id]
        assert run_call(self.redis, call) == [self.owns(held)]
        if self.owns(held):
            truth.preparing = 0 if is_done else held.epoch

    @rule(held=held, kind=st.sampled_from(["started", "token", "token", "end"]))
    def emit(self, held: Held, kind: str) -> None:
        self.send(held, [self.entry(held, kind, held.seq + 1, held.n)])

    @rule(held=held)
    def emit_two_jobs_a_step(self, held: Held) -> None:
        other = "b" if held.job_id == "a" else "a"
        stranger = token(other, 10_000, 10_000, epoch=held.epoch)
        self.send(held, [self.entry(held, "token", held.seq + 1, held.n), stranger])

    @rule(held=held, skip=st.integers(1, 3))
    def emit_too_far(self, held: Held, skip: int) -> None:
        self.send(held, [self.entry(held, "token", held.seq + 1 + skip, held.n + skip)])

    @rule(held=held)
    def repeat_from_the_start(self, held: Held) -> None:
        """A worker that does not know what was written sends its events once more."""
        self.send(held, [self.entry(held, "token", seq + 1, 0) for seq in range(held.seq)])

    @rule(held=consumes(held), push=st.booleans(), has_died=st.booleans())
    def release(self, held: Held, push: bool, has_died: bool) -> None:
        truth = self.truth[held.job_id]
        of = held.job_id, held.owner, held.epoch
        answer = run_call(self.redis, self.herd.ledger.release(*of, push=push, has_died=has_died))
        if self.owns(held) and not truth.is_final:
            assert answer is Release.RELEASED
            truth.owner = None
            truth.deaths += has_died
        else:
            assert answer is not Release.RELEASED

    @rule(held=held, delay_ms=st.sampled_from([0, 3_600_000]))
    def put_back(self, held: Held, delay_ms: int) -> None:
        truth = self.truth[held.job_id]
        failure = Failure(code="model_error", message="no")
        answer = run_call(
            self.redis,
            self.herd.ledger.retry(
                *(held.job_id, held.owner, held.epoch), seq=held.seq, delay_ms=delay_ms, left=1, error=failure
            ),
        )
        is_repeated = not truth.is_final and truth.put_back == held.epoch > 0
        may = self.owns(held) and not (truth.is_final or truth.is_cancelled) and held.seq <= len(truth.log)
        assert (answer.kind == "ok") == (may or is_repeated)
        if may:
            truth.owner, truth.put_back, truth.is_early = None, held.epoch, delay_ms > 0
            truth.retries += 1

    @rule(job_id=JOBS)
    def let_it_be_due(self, job_id: str) -> None:
        now_ms = 1000 * self.redis.time()[0]
        truth = self.truth[job_id]
        if truth.is_early and not truth.is_final:
            self.redis.hset(self.herd.ledger.job_key(job_id), "retry_ms", now_ms)
            self.redis.zadd("herd:default:delayed", {job_id: now_ms}, xx=True)
            truth.is_early = False

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        truth = self.truth[job_id]
        answer = run_call(self.redis, self.herd.ledger.cancel(job_id))
        if truth.is_final:
            assert answer is Cancellation.FINISHED
        elif truth.owner and not truth.is_lease_over:
            assert answer is Cancellation.ASKED
            truth.is_cancelled = True
        else:
            assert answer is Cancellation.CANCELLED
            self.ended_by_script(job_id)

    @rule(job_id=JOBS, is_given_up=st.booleans())
    def pass_lease(self, job_id: str, is_given_up: bool) -> None:
        truth = self.truth[job_id]
        if not truth.is_final:
            self.herd.pass_lease(job_id) if is_given_up else self.herd.fall_silent(job_id)
            truth.is_lease_over, truth.is_given_up = True, is_given_up

    @rule(held=held)
    def renew(self, held: Held) -> None:
        answer = self.herd.renew(held.job_id, held.owner, held.epoch)
        truth = self.truth[held.job_id]
        assert (answer.kind in ("ok", "cancelled")) == (self.owns(held) and not truth.is_final)
        if answer.kind in ("ok", "cancelled"):
            truth.is_lease_over = truth.is_given_up = False

    @rule()
    def sweep(self) -> None:
        now_s = self.redis.time()[0]
        self.redis.hset("herd:default:sweep", mapping={"last": (now_s - 11) * 1000, "hold": 0, "gaps": 0})
        for job_id in run_call(self.redis, sweep_tenant(self.herd.ledger)).jobs:
            assert not self.truth[job_id].is_final
            assert not self.truth[job_id].is_cancelled
            assert self.truth[job_id].owner is None or self.truth[job_id].is_lease_over
        for job_id, truth in self.truth.items():
            if not (truth.owner and truth.is_lease_over) or truth.is_final:
                continue
            truth.is_given_up = True  # also while an earlier message waits, and no other is pushed
            if truth.is_cancelled:
                self.ended_by_script(job_id)

    @invariant()
    def the_log_is_one_log(self) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in self.truth:
            pipeline.xrange(self.herd.ledger.events_key(job_id))
            pipeline.ttl(self.herd.ledger.job_key(job_id))
            pipeline.zscore("herd:default:pending", job_id)
            pipeline.zscore("herd:default:leases", job_id)
            pipeline.zscore(f"herd:default:pending:{QUEUE}", job_id)
            pipeline.zscore("herd:default:delayed", job_id)
        replies = iter(pipeline.execute())
        for truth in self.truth.values():
            stored, ttl, pending, lease, line, delayed = (next(replies) for _ in range(6))
            self.check_log(truth, [fields[b"e"] for _, fields in stored])
            is_owned = truth.owner is not None and not truth.is_final
            assert (lease is not None) == is_owned
            assert (pending is not None) == (not is_owned and not truth.is_final)
            assert [line, delayed].count(None) == 2 - (pending is not None)
            assert delayed is not None or truth.is_final or not truth.is_early
            assert (ttl > 0) == truth.is_final

    def check_log(self, truth: Truth, log: list[bytes]) -> None:
        """An event once written never changes, seq is dense, tokens join up, one end is the last."""
        assert log == truth.log
        events = [parse_event(line) for line in log]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.epoch for event in events] == sorted(event.epoch for event in events)
        ids = [i for event in events if isinstance(event, Token) for i in event.ids]
        assert ids == [100 + i for i in range(truth.n)]
        ends = [place for place, event in enumerate(events, 1) if isinstance(event, End)]
        assert ends == [len(events)] * truth.is_final
        if truth.is_final:
            assert Result.from_events(events).ids == tuple(ids)

    def entry(self, held: Held, kind: str, seq: int, i: int) -> EmitEntry:
        match kind:
            case "started":
                return started(held.job_id, seq, held.epoch, i)
            case "token":
                return token(held.job_id, seq, i, epoch=held.epoch)
            case _:
                return end(held.job_id, seq, i, held.epoch)

    def send(self, held: Held, entries: list[EmitEntry]) -> None:
        """Send, and take over into the truth what must have been written; then send it all once more."""
        answers = self.herd.emit(held.owner, *entries)
        for entry, answer in zip(entries, answers, strict=True):
            if answer.kind == "ok":
                self.written(held, entry)
            elif not self.owns(held) or entry.job_id != held.job_id:
                assert answer.kind in ("fenced", "gap", "cancelled", "finished")
        assert "ok" not in self.herd.kinds(held.owner, *entries)

    def written(self, held: Held, entry: EmitEntry) -> None:
        truth = self.truth[entry.job_id]
        assert self.owns(held)
        assert not truth.is_final
        assert entry.kind == "end" or not truth.is_cancelled
        assert (entry.seq, entry.i) == (len(truth.log) + 1, truth.n)
        truth.log.append(entry.event.encode())
        truth.is_final = entry.kind == "end"
        truth.is_lease_over = truth.is_given_up = False
        if entry.kind == "started":
            truth.computing, truth.started_n = entry.epoch, truth.n
        truth.n = held.n = entry.i + entry.num_ids
        if entry.kind == "token" and truth.n - truth.started_n >= SOUND_TOKENS:
            truth.deaths = 0
        held.seq = entry.seq

    def ended_by_script(self, job_id: str) -> None:
        truth = self.truth[job_id]
        truth.log.append(self.redis.xrevrange(self.herd.ledger.events_key(job_id), count=1)[0][1][b"e"])
        truth.epoch += 1
        truth.is_final, truth.owner = True, None

    def owns(self, held: Held) -> bool:
        truth = self.truth[held.job_id]
        return (truth.owner, truth.epoch) == (held.owner, held.epoch)


@pytest.mark.long
@pytest.mark.parametrize("num_examples", [8, pytest.param(30, marks=pytest.mark.long)])
def test_one_log_whatever_happens(redis: Redis, num_examples: int) -> None:
    """Dense seq, one end, nothing rewritten, and never a word from who is not the owner."""
    LedgerMachine.redis = redis
    limits = settings(
        max_examples=num_examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(LedgerMachine, settings=limits)
