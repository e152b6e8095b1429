"""What waits is counted and bounded: by jobs and by tokens, and never by a number that has drifted."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis import Redis

from llama_herd.errors import QueueFull
from llama_herd.tasks import Client, SamplingParams
from llama_herd.tasks.ledger.answers import Claimed, Submission
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import LANES, LOW, NORMAL, URGENT
from llama_herd.tasks.settings import Settings
from tests.tasks.herd import QUEUE, Herd, end, started, sweep, token
from tests.tasks.ledger.test_delayed import later, let_it_be_due

pytestmark = pytest.mark.redis

WAITING = "herd:default:waiting"
QUEUES = ("herd.tales", "herd.other")
JOBS = st.sampled_from("abcd")
OWNERS = st.sampled_from(["one", "two"])
BARE = b'{"headers": {"id": "bare"}}'


def counted(redis: Any) -> dict[str, int]:
    """What waits, as Redis has counted it."""
    fields = {name.decode(): int(float(value)) for name, value in redis.hgetall(WAITING).items()}
    return {name: value for name, value in fields.items() if name.endswith((":jobs", ":tokens", ":delayed"))}


def bounds(redis: Any, ledger: Ledger, queue: str) -> tuple[int, int]:
    """How many jobs wait for a queue at least and at most: Redis cannot tell which lost their message."""
    delayed = set(redis.zrange(ledger.key("delayed"), 0, -1))
    ours = [
        name
        for name in redis.zrange(ledger.key("pending"), 0, -1)
        if redis.hget(ledger.job_key(name.decode()), "queue") == queue.encode()
    ]
    messages = [json.loads(text) for lane in LANES for text in redis.lrange(queue + lane, 0, -1)]
    senders = {message["headers"]["id"].encode() for message in messages}
    in_lists = sum(name in senders for name in ours if name not in delayed)
    num_jobs = len(ours) + len(messages) - in_lists
    num_elsewhere = sum(name not in delayed for name in ours) - in_lists
    return max(len(ours), num_jobs - num_elsewhere), num_jobs


class WaitingMachine(RuleBasedStateMachine):
    """Jobs come, are claimed, given back, cancelled, expire, kill, are forgotten and swept, in any order."""

    redis: Any

    @initialize()
    def begin(self) -> None:
        self.redis.flushall()
        self.herd = Herd(self.redis, Ledger(lease_ms=60_000, max_deaths=2))

    @rule(
        name=JOBS,
        queue=st.sampled_from(QUEUES),
        max_tokens=st.integers(1, 50),
        priority=st.integers(-1, 1),
        is_delayed=st.booleans(),
    )
    def submit(self, name: str, queue: str, max_tokens: int, priority: int, is_delayed: bool) -> None:
        job = later(self.herd) if is_delayed else GenerationJob(prompt="x")
        sampling = SamplingParams(max_tokens=max_tokens)
        job = job.model_copy(update={"sampling": sampling, "priority": priority})
        fewest, most = bounds(self.redis, self.herd.ledger, queue)
        answer = run_call(self.redis, self.herd.ledger.submit(name, job, Envelope.for_job(name, queue)))
        if answer.kind is Submission.SUBMITTED:
            assert fewest <= answer.num_jobs <= most

    @rule(queue=st.sampled_from(QUEUES), lane=st.sampled_from(LANES))
    def bare_message(self, queue: str, lane: str) -> None:
        self.redis.lpush(queue + lane, BARE)

    @rule(queue=st.sampled_from(QUEUES), lane=st.sampled_from(LANES))
    def take(self, queue: str, lane: str) -> None:
        """A worker receives a message and does not claim yet, or never."""
        self.redis.rpop(queue + lane)

    @rule(name=JOBS, queue=st.sampled_from(QUEUES), is_delayed=st.booleans())
    def bare_claim(self, name: str, queue: str, is_delayed: bool) -> None:
        job = later(self.herd) if is_delayed else GenerationJob(prompt="x")
        run_call(
            self.redis,
            self.herd.ledger.claim(name, "one", job=job, envelope=Envelope.for_job(name, queue)),
        )

    @rule(name=JOBS, owner=OWNERS)
    def claim(self, name: str, owner: str) -> None:
        self.herd.claim(name, owner)

    @rule(name=JOBS, owner=OWNERS, kind=st.sampled_from(["start", "token", "end", "die"]))
    def go_on(self, name: str, owner: str, kind: str) -> None:
        claimed = self.herd.claim(name, owner)
        if not isinstance(claimed, Claimed):
            return
        seq, n, epoch = claimed.seq + 1, claimed.n, claimed.epoch
        match kind:
            case "token":
                self.herd.emit(owner, token(name, seq, n, epoch=epoch))
            case "end":
                self.herd.emit(owner, end(name, seq, n, epoch))
            case _:
                self.herd.emit(owner, started(name, seq, epoch, n))
        if kind == "die":
            self.herd.pass_lease(name)

    @rule(name=JOBS, owner=OWNERS, push=st.booleans())
    def release(self, name: str, owner: str, push: bool) -> None:
        claimed = self.herd.claim(name, owner)
        if isinstance(claimed, Claimed):
            run_call(self.redis, self.herd.ledger.release(name, owner, claimed.epoch, push=push))

    @rule(name=JOBS)
    def cancel(self, name: str) -> None:
        run_call(self.redis, self.herd.ledger.cancel(name))

    @rule(name=JOBS)
    def expire(self, name: str) -> None:
        if self.redis.exists(self.herd.ledger.job_key(name)):
            self.redis.hset(self.herd.ledger.job_key(name), "deadline_ms", 1)

    @rule(name=JOBS)
    def grow_old(self, name: str) -> None:
        if self.redis.zscore("herd:default:delayed", name):
            let_it_be_due(self.herd, name)
        elif self.redis.zscore("herd:default:pending", name):
            self.herd.pass_time(name, 20_000)

    @rule(name=JOBS)
    def purge(self, name: str) -> None:
        run_call(self.redis, self.herd.ledger.purge(name))

    @rule(name=JOBS)
    def forget(self, name: str) -> None:
        """Time takes the record of a job that has ended."""
        if self.redis.ttl(self.herd.ledger.job_key(name)) > 0:
            self.redis.delete(self.herd.ledger.job_key(name), self.herd.ledger.events_key(name))

    @rule(is_lost=st.booleans())
    def sweep(self, is_lost: bool) -> None:
        if is_lost:
            self.redis.delete(*QUEUES)
        sweep(self.herd)

    @invariant()
    def the_counts_are_those_of_what_waits(self) -> None:
        found: Counter[str] = Counter()
        for name in self.redis.zrange("herd:default:pending", 0, -1):
            record = self.redis.hgetall(self.herd.ledger.job_key(name.decode()))
            assert record[b"state"] == b"queued"
            queue = record[b"queue"].decode()
            found[f"{queue}:jobs"] += 1
            found[f"{queue}:tokens"] += int(record[b"tokens"])
            found[f"{queue}:delayed"] += self.redis.zscore("herd:default:delayed", name) is not None
        assert Counter(counted(self.redis)) == found
        delayed = set(self.redis.zrange("herd:default:delayed", 0, -1))
        assert delayed <= set(self.redis.zrange("herd:default:pending", 0, -1))


@pytest.mark.long
@pytest.mark.parametrize("num_examples", [8, pytest.param(30, marks=pytest.mark.long)])
def test_the_counts_never_drift_whatever_happens(redis: Redis, num_examples: int) -> None:
    WaitingMachine.redis = redis
    limits = settings(
        max_examples=num_examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(WaitingMachine, settings=limits)


def test_a_record_that_was_deleted_by_hand_is_not_counted_for_ever(herd: Herd) -> None:
    herd.submit("a")
    herd.redis.delete(herd.ledger.job_key("a"))
    herd.pass_time("a", 20_000)
    sweep(herd)
    assert counted(herd.redis) == {}


def client_of(redis_url: str, **limits: int) -> Client:
    return Client(settings=Settings(redis_url=redis_url, **limits))  # type: ignore[arg-type]


def test_jobs_are_refused_while_as_many_wait_as_may(redis_url: str, herd: Herd) -> None:
    with client_of(redis_url, max_queue=2) as client:
        first = client.submit(prompt="x")
        client.submit(prompt="x", not_before=later(herd).not_before)
        with pytest.raises(QueueFull) as caught:
            client.submit(prompt="x", job_id="c")
        full = caught.value
        assert (full.queue, full.unit, full.depth, full.limit, full.retry_after_s) == (
            QUEUE,
            "jobs",
            2,
            2,
            60,
        )
        assert str(full) == (
            "2 jobs wait in herd.tales, and the limit is 2. Fix: submit again in 60 s, start more workers, "
            "or raise HERD_MAX_QUEUE"
        )
        assert run_call(herd.redis, herd.ledger.record("c")) is None
        # Another model's queue is another matter, and a place that is free is given away.
        client.submit(prompt="x", model="other")
        herd.redis.rpop(QUEUE)
        herd.claim(first)
        client.submit(prompt="x")


def test_an_argument_of_the_client_comes_before_the_setting(redis_url: str) -> None:
    with Client(settings=Settings(redis_url=redis_url, max_queue=1), max_queue=0) as client:
        client.submit(prompt="x")
        client.submit(prompt="x")


@pytest.mark.parametrize("lane", LANES)
def test_messages_that_came_without_our_client_take_room_in_every_list(
    redis_url: str, redis: Redis, lane: str
) -> None:
    redis.lpush(QUEUE + lane, BARE, BARE)
    with client_of(redis_url, max_queue=2) as client, pytest.raises(QueueFull) as caught:
        client.submit(prompt="x")
    assert caught.value.depth == 2


@pytest.mark.parametrize("lane", [URGENT, NORMAL, LOW])
@pytest.mark.parametrize("priority", [-1, 0, 1])
@pytest.mark.parametrize("is_delayed", [False, True])
def test_they_take_room_beside_our_jobs(
    redis_url: str, herd: Herd, lane: str, priority: int, is_delayed: bool
) -> None:
    herd.redis.lpush(QUEUE + lane, *[BARE] * 3)
    not_before = later(herd).not_before if is_delayed else None
    with client_of(redis_url, max_queue=5) as client:
        for _ in range(2):
            client.submit(prompt="x", priority=priority, not_before=not_before)
        with pytest.raises(QueueFull) as caught:
            client.submit(prompt="x", priority=priority, not_before=not_before)
    assert caught.value.depth == 5


def test_a_job_that_was_delayed_takes_no_more_room_with_its_message(redis_url: str, herd: Herd) -> None:
    with client_of(redis_url, max_queue=2) as client:
        job_id = client.submit(prompt="x", not_before=later(herd).not_before)
        let_it_be_due(herd, job_id)
        sweep(herd)
        client.submit(prompt="x")
        with pytest.raises(QueueFull) as caught:
            client.submit(prompt="x")
    assert caught.value.depth == 2


def test_a_job_whose_message_a_worker_holds_takes_room_until_its_claim(redis_url: str, herd: Herd) -> None:
    with client_of(redis_url, max_queue=1) as client:
        job_id = client.submit(prompt="x")
        herd.redis.rpop(QUEUE)
        with pytest.raises(QueueFull):
            client.submit(prompt="x")
        herd.claim(job_id)
        client.submit(prompt="x")


def test_jobs_are_refused_while_too_many_tokens_wait(redis_url: str, herd: Herd) -> None:
    with client_of(redis_url, max_queue_tokens=250) as client:
        first = client.submit(prompt="x" * 40, sampling={"max_tokens": 90})
        client.submit(prompt="x" * 40, sampling={"max_tokens": 90})
        with pytest.raises(QueueFull) as caught:
            client.submit(prompt="x" * 40, sampling={"max_tokens": 41})
        full = caught.value
        assert (full.unit, full.depth, full.limit) == ("tokens", 200, 250)
        assert "200 tokens wait in herd.tales, and the limit is 250" in str(full)
        assert "HERD_MAX_QUEUE_TOKENS" in str(full)
        client.submit(prompt="x" * 40, sampling={"max_tokens": 40})
        herd.claim(first)
        client.submit(prompt="x" * 40, sampling={"max_tokens": 90})


def test_a_job_that_is_over_the_limit_by_itself_waits_alone(redis_url: str) -> None:
    with client_of(redis_url, max_queue_tokens=10) as client:
        client.submit(prompt="x", sampling={"max_tokens": 100})
        with pytest.raises(QueueFull):
            client.submit(prompt="x", sampling={"max_tokens": 1})


def test_the_time_to_wait_follows_from_how_fast_jobs_were_taken(redis_url: str, herd: Herd) -> None:
    """Two jobs a second: a place is free in half a second, said as one, and room for ten in five."""
    for number in range(20):
        herd.submit(f"taken-{number}")
        herd.claim(f"taken-{number}")
    herd.redis.delete(QUEUE)
    herd.redis.hincrby(WAITING, f"{QUEUE}:since", -10_000)

    def most_s(num: int) -> float:
        """How long so many take by now: the time of this test counts, too."""
        since_ms = float(herd.redis.hget(WAITING, f"{QUEUE}:since"))
        return float(num * (herd.redis.time()[0] + 1 - since_ms / 1000) / 20)

    with client_of(redis_url, max_queue=10, max_queue_tokens=1000) as client:
        for _ in range(10):
            client.submit(prompt="x", sampling={"max_tokens": 99})
        with pytest.raises(QueueFull) as by_jobs:
            client.submit(prompt="x", sampling={"max_tokens": 99})
    assert 1 <= by_jobs.value.retry_after_s <= max(1, most_s(1))
    with client_of(redis_url, max_queue_tokens=1000) as client, pytest.raises(QueueFull) as by_tokens:
        client.submit(prompt="x", sampling={"max_tokens": 999})
    assert 5 <= by_tokens.value.retry_after_s <= most_s(10)


def test_how_fast_jobs_were_taken_an_hour_ago_weighs_little(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.redis.hset(
        WAITING, mapping={f"{QUEUE}:taken": 3600, f"{QUEUE}:since": herd.redis.time()[0] * 1000 - 3_600_000}
    )
    herd.submit("b")
    before_s = herd.redis.time()[0]
    herd.claim("b")
    taken, since = (float(value) for value in herd.redis.hmget(WAITING, f"{QUEUE}:taken", f"{QUEUE}:since"))
    assert taken == pytest.approx(31, abs=0.1)
    assert before_s - 30 <= since / 1000 <= herd.redis.time()[0] - 29
