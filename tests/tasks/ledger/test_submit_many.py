"""SUBMIT_MANY: a lot of jobs comes to what the same jobs come to one by one."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.connection.complaint import FULL, redis_complaint
from llama_herd.tasks.ledger.answers import Submission, Submitted
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import redis_time_ms, run_call, run_calls
from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from tests.tasks.herd import JOB, QUEUE
from tests.tasks.ledger.test_ledger_submit import SPOILT, contents

pytestmark = pytest.mark.redis

#: A time to come, and a span, that no clock meets during a test.
LATER_MS, SPAN_S = 2**52, 10_000_000
#: No test takes so long.
CLOSE_MS = 600_000

#: Commands that leave Redis as a lot may find it.
STATES = {
    "all is well": ("PING",),
    **SPOILT,
    "the queues that are served are no sorted set": ("SADD", "herd:default:served", "x"),
    "a job waits that has no record": ("ZADD", "herd:default:pending", "1", "a"),
    "a bare message waits": ("LPUSH", QUEUE, "x"),
    "a job was purged": ("HSET", "herd:default:{a}:job", "state", "purged"),
}

TIMES = st.sampled_from([{}, {}, {"not_before": LATER_MS}, {"deadline_ms": LATER_MS}, {"timeout_s": SPAN_S}])
JOBS = st.builds(
    lambda times, **fields: GenerationJob(**times, **fields),
    times=TIMES,
    prompt=st.sampled_from(["x", "y" * 400]),
    model=st.sampled_from(["tales", "tales", "other"]),
    priority=st.sampled_from([0, 0, 5, -1]),
    webhook=st.sampled_from([None, None, "https://example.org/told"]),
)
#: Few ids, so that many are taken already; and one that can name no job.
LOTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", "e", "f", "a b"]), JOBS), max_size=12)
LEDGERS = st.builds(
    Ledger,
    max_queue=st.sampled_from([0, 0, 1, 3]),
    max_queue_tokens=st.sampled_from([0, 0, 300, 900]),
)


def submitted(
    redis: Redis, ledger: Ledger, jobs: Sequence[tuple[str, GenerationJob]], *, at_once: bool
) -> list[Any]:
    """The answers to these jobs, sent in one call or in one each."""
    new = [(name, job, Envelope.for_job(name, queue_name(str(job.model)))) for name, job in jobs]
    if at_once:
        return run_call(redis, ledger.submit_many([ledger.submit_item(*one) for one in new]))
    return [run_calls(redis, [ledger.submit(*one)])[0] for one in new]


def told(answer: Submitted | ResponseError) -> object:
    """The part of an answer that a client reads: of a job that was accepted, only that."""
    if isinstance(answer, ResponseError):
        return "error"
    return answer if answer.kind in (Submission.QUEUE_FULL, Submission.TOKENS_FULL) else answer.kind


def value(redis: Any, key: bytes) -> object:
    match redis.type(key):
        case b"hash":
            return sorted(redis.hgetall(key).items())
        case b"list":
            return redis.lrange(key, 0, -1)
        case b"zset":
            return sorted((name, int(score)) for name, score in redis.zscan_iter(key))
        case _:
            return sorted(redis.smembers(key))


def without_clock(text: str, now_ms: int) -> str:
    """A text in which each time that is about now, or a span from now, says so."""

    def name_of(found: re.Match[str]) -> str:
        spans = {"now": 0, "a span from now": 1000 * SPAN_S}
        near = (name for name, ms in spans.items() if abs(int(found[0]) - now_ms - ms) < CLOSE_MS)
        return next(near, found[0])

    return re.sub(r"\b\d{13}\b", name_of, text)


def comes_to(
    redis: Any, ledger: Ledger, spoil: str, jobs: Sequence[tuple[str, GenerationJob]], *, at_once: bool
) -> tuple[list[object], dict[bytes, str]]:
    """What is answered to these jobs, and what Redis holds then."""
    redis.flushdb()
    redis.execute_command(*STATES[spoil])
    answers = [told(one) for one in submitted(redis, ledger, jobs, at_once=at_once)]
    now_ms = 1000 * redis.time()[0]
    return answers, {key: without_clock(str(value(redis, key)), now_ms) for key in redis.scan_iter("*")}


@pytest.mark.parametrize("num_examples", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("state", STATES)
def test_a_lot_comes_to_what_its_jobs_come_to_one_by_one(redis: Redis, state: str, num_examples: int) -> None:
    """Also where a key is spoilt: whom that refuses when alone is refused in a lot, and nobody else."""

    @settings(max_examples=num_examples)
    @given(jobs=LOTS, ledger=LEDGERS)
    def law(jobs: list[tuple[str, GenerationJob]], ledger: Ledger) -> None:
        alone = comes_to(redis, ledger, state, jobs, at_once=False)
        assert comes_to(redis, ledger, state, jobs, at_once=True) == alone
        held = contents(redis)
        submitted(redis, ledger, jobs, at_once=True)
        assert contents(redis) == held

    law()


def test_the_law_meets_every_answer(redis: Redis) -> None:
    """Or it would show nothing."""
    jobs = [("a", JOB), ("a", JOB), ("b c", JOB), ("a", GenerationJob(prompt="y", model="tales")), ("d", JOB)]
    answers, keys = comes_to(redis, Ledger(max_queue=1), "all is well", jobs, at_once=True)
    assert answers[:4] == ["submitted", "exists", "error", "conflict"]
    assert isinstance(answers[4], Submitted)
    assert (answers[4].kind, answers[4].num_jobs) == (Submission.QUEUE_FULL, 1)
    assert "(b'submitted_ms', b'now')" in keys[b"herd:default:{a}:job"]


@pytest.mark.parametrize("num_bare", [0, 2])
def test_the_job_over_the_limit_is_refused_and_not_the_lot(redis: Redis, num_bare: int) -> None:
    """What was sent by itself counts, too, beside all that was accepted before in the lot."""
    for _ in range(num_bare):
        redis.lpush(QUEUE, "bare")
    ledger = Ledger(max_queue=3)
    answers = submitted(redis, ledger, [(name, JOB) for name in "abcde"], at_once=True)
    num_jobs = 3 - num_bare
    assert [answer.kind for answer in answers] == ["submitted"] * num_jobs + ["queue_full"] * (5 - num_jobs)
    assert {answer.num_jobs for answer in answers[num_jobs:]} == {3}
    assert (redis.llen(QUEUE), redis.zcard("herd:default:pending")) == (3, num_jobs)


def test_a_lot_says_once_that_nobody_serves_a_queue(redis: Redis) -> None:
    redis.zadd("herd:default:served", {"herd.other": LATER_MS})
    answers = submitted(redis, Ledger(), [(name, JOB) for name in "abc"], at_once=True)
    assert [answer.served_instead for answer in answers] == [("herd.other",), (), ()]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("lives", "instead"), [(0.5, ()), (2, ("herd.other",))])
def test_a_queue_is_served_as_long_as_a_report_lives(
    redis: Redis, lives: float, instead: tuple[str, ...], at_once: bool
) -> None:
    now_ms = run_call(redis, redis_time_ms())
    redis.zadd("herd:default:served", {QUEUE: now_ms - 1000 * WORKER_TTL_S * lives, "herd.other": now_ms})
    [answer] = submitted(redis, Ledger(), [("a", JOB)], at_once=at_once)
    assert answer.served_instead == instead


def test_a_full_redis_takes_nothing_of_a_lot_and_says_so_of_each_job(redis: Redis) -> None:
    before = contents(redis)
    redis.config_set("maxmemory", 1)
    try:
        answers = submitted(redis, Ledger(), [(name, JOB) for name in "abc"], at_once=True)
    finally:
        redis.config_set("maxmemory", 0)
    assert [redis_complaint(answer) for answer in answers] == [FULL] * 3
    assert contents(redis) == before
