"""The ledger against a model of it: whatever two workers, a client and time do, the log stays one log."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from redis import Redis

from llama_herd.tasks.answers import Adopt, Busy, Cancellation, Ended, Release, Yours
from llama_herd.tasks.call import run
from llama_herd.tasks.events import End, Token
from llama_herd.tasks.ledger import Entry, Ledger
from llama_herd.tasks.result import Result
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis

OWNERS = st.sampled_from(["one", "two"])
JOBS = st.sampled_from(["a", "b"])
MAX_ATTEMPTS = 3


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
    is_final: bool = False
    is_cancelled: bool = False
    attempts: int = 0
    log: list[bytes] = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    """Workers hold claims, old and new ones, and use them in any order."""

    redis: Redis
    held = Bundle("held")

    @initialize()
    def submit(self) -> None:
        self.redis.flushall()
        self.herd = Herd(self.redis, Ledger(lease_ms=60_000, max_attempts=MAX_ATTEMPTS))
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
        elif truth.owner and not truth.is_lease_over:
            assert isinstance(answer, Adopt if truth.owner == owner else Busy)
        elif truth.attempts >= MAX_ATTEMPTS:
            assert answer is Ended.POISON
            self.ended_by_script(job_id)
        else:
            assert isinstance(answer, Yours)
            truth.epoch += 1
            truth.owner, truth.is_lease_over = owner, False
            assert (answer.epoch, answer.seq, answer.n) == (
                truth.epoch,
                len(truth.log),
                self.num_tokens(job_id),
            )
            assert answer.attempts == truth.attempts
        if isinstance(answer, Yours | Adopt):
            return Held(job_id, owner, answer.epoch, answer.seq, answer.n)
        return Held(job_id, owner, truth.epoch, len(truth.log), self.num_tokens(job_id))

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

    @rule(held=consumes(held), push=st.booleans())
    def release(self, held: Held, push: bool) -> None:
        truth = self.truth[held.job_id]
        answer = run(self.redis, self.herd.ledger.release(held.job_id, held.owner, held.epoch, push=push))
        if self.owns(held) and not truth.is_final:
            assert answer is Release.RELEASED
            truth.owner = None
            truth.attempts = int(self.herd.field(held.job_id, "attempts"))
        else:
            assert answer is not Release.RELEASED

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        truth = self.truth[job_id]
        answer = run(self.redis, self.herd.ledger.cancel(job_id))
        if truth.is_final:
            assert answer is Cancellation.FINISHED
        elif truth.owner and not truth.is_lease_over:
            assert answer is Cancellation.ASKED
            truth.is_cancelled = True
        else:
            assert answer is Cancellation.CANCELLED
            self.ended_by_script(job_id)

    @rule(job_id=JOBS)
    def pass_lease(self, job_id: str) -> None:
        if not self.truth[job_id].is_final:
            self.herd.pass_lease(job_id)
            self.truth[job_id].is_lease_over = True

    @rule(held=held)
    def renew(self, held: Held) -> None:
        answer = run(self.redis, self.herd.ledger.renew(held.job_id, held.owner, held.epoch))
        truth = self.truth[held.job_id]
        assert (answer.kind in ("ok", "cancelled")) == (self.owns(held) and not truth.is_final)
        if answer.kind in ("ok", "cancelled"):
            truth.is_lease_over = False

    @rule()
    def sweep(self) -> None:
        now_s = self.redis.time()[0]
        self.redis.hset("herd:default:sweep", mapping={"last": (now_s - 11) * 1000, "hold": 0})
        for job_id in run(self.redis, self.herd.ledger.sweep()).jobs:
            assert not self.truth[job_id].is_final

    @invariant()
    def an_event_once_written_never_changes(self) -> None:
        for job_id, truth in self.truth.items():
            stored = self.redis.xrange(self.herd.ledger.events_key(job_id))
            assert [fields[b"e"] for _, fields in stored] == truth.log

    @invariant()
    def the_log_is_one_log(self) -> None:
        for job_id, truth in self.truth.items():
            events = self.herd.events(job_id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [event.epoch for event in events] == sorted(event.epoch for event in events)
            ids = [i for event in events if isinstance(event, Token) for i in event.ids]
            assert ids == [100 + i for i in range(len(ids))]
            ends = [event for event in events if isinstance(event, End)]
            assert len(ends) == truth.is_final
            if truth.is_final:
                assert events[-1] is ends[0]
                assert ends[0].n == len(ids)
                assert Result.from_events(events).ids == tuple(ids)

    @invariant()
    def the_indexes_say_what_the_records_say(self) -> None:
        pending = {name.decode() for name in self.redis.zrange("herd:default:pending", 0, -1)}
        leases = {name.decode() for name in self.redis.zrange("herd:default:leases", 0, -1)}
        for job_id, truth in self.truth.items():
            assert (job_id in leases) == (truth.owner is not None and not truth.is_final)
            assert (job_id in pending) == (truth.owner is None and not truth.is_final)
            assert (self.redis.ttl(self.herd.ledger.job_key(job_id)) > 0) == truth.is_final

    def entry(self, held: Held, kind: str, seq: int, i: int) -> Entry:
        match kind:
            case "started":
                return started(held.job_id, seq, held.epoch, i)
            case "token":
                return token(held.job_id, seq, i, epoch=held.epoch)
            case _:
                return end(held.job_id, seq, i, held.epoch)

    def send(self, held: Held, entries: list[Entry]) -> None:
        """Send, and take over into the truth what must have been written; then send it all once more."""
        answers = self.herd.emit(held.owner, *entries)
        for entry, answer in zip(entries, answers, strict=True):
            if answer.kind == "ok":
                self.written(held, entry)
            elif not self.owns(held) or entry.job_id != held.job_id:
                assert answer.kind in ("fenced", "gap", "cancelled", "finished")
        for entry, answer in zip(entries, self.herd.emit(held.owner, *entries), strict=True):
            assert answer.kind != "ok", entry

    def written(self, held: Held, entry: Entry) -> None:
        truth = self.truth[entry.job_id]
        assert self.owns(held)
        assert not truth.is_final
        assert entry.kind == "end" or not truth.is_cancelled
        assert (entry.seq, entry.i) == (len(truth.log) + 1, self.num_tokens(entry.job_id))
        truth.log.append(entry.event.encode())
        truth.is_final = entry.kind == "end"
        truth.is_lease_over = False
        truth.attempts = {"started": truth.attempts + 1, "token": 0}.get(entry.kind, truth.attempts)
        held.seq, held.n = entry.seq, entry.i + entry.num_ids

    def ended_by_script(self, job_id: str) -> None:
        truth = self.truth[job_id]
        truth.log.append(self.redis.xrevrange(self.herd.ledger.events_key(job_id), count=1)[0][1][b"e"])
        truth.epoch += 1
        truth.is_final, truth.owner = True, None

    def owns(self, held: Held) -> bool:
        truth = self.truth[held.job_id]
        return (truth.owner, truth.epoch) == (held.owner, held.epoch)

    def num_tokens(self, job_id: str) -> int:
        return sum(len(event.ids) for event in self.herd.events(job_id) if isinstance(event, Token))


def test_one_log_whatever_happens(redis: Redis) -> None:
    """Dense seq, one end, nothing rewritten, and never a word from who is not the owner."""

    class Machine(LedgerMachine):
        pass

    Machine.redis = redis
    machine_test = Machine.TestCase
    machine_test.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine_test().runTest()
