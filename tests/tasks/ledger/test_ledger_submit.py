"""SUBMIT and the message that it pushes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.connection.complaint import FULL, redis_complaint
from llama_herd.tasks.ledger.answers import Submission, Submitted
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd

pytestmark = pytest.mark.redis


def test_a_submitted_job_has_a_record_a_pending_mark_and_a_message(herd: Herd) -> None:
    answer = run_call(herd.redis, herd.ledger.submit("a", JOB, Envelope.for_job("a", QUEUE)))
    assert answer == Submitted(Submission.SUBMITTED)
    record = run_call(herd.redis, herd.ledger.record("a"))
    assert record is not None
    assert (record.state, record.queue, record.seq, record.n, record.epoch) == ("queued", QUEUE, 0, 0, 0)
    assert herd.redis.zscore("herd:default:pending", "a") == record.submitted_ms
    assert json.loads(herd.messages()[0])["headers"]["id"] == "a"


def test_the_message_holds_no_prompt(herd: Herd) -> None:
    herd.submit("a")
    assert b"secret" not in herd.messages()[0]
    assert JOB.to_json() in herd.field("a", "body")


def test_the_same_job_again_is_a_no_op_and_another_one_a_conflict(herd: Herd) -> None:
    herd.submit("a")
    before = herd.redis.hgetall(herd.ledger.job_key("a"))
    again = run_call(herd.redis, herd.ledger.submit("a", JOB, Envelope.for_job("a", QUEUE)))
    other = run_call(
        herd.redis, herd.ledger.submit("a", GenerationJob(prompt="b"), Envelope.for_job("a", QUEUE))
    )
    assert (again.kind, other.kind) == (Submission.EXISTS, Submission.CONFLICT)
    assert herd.redis.hgetall(herd.ledger.job_key("a")) == before
    assert len(herd.messages()) == 1


def test_a_job_is_the_same_only_with_the_secret_of_its_webhook(herd: Herd) -> None:
    secrets = ("whsec_" + 32 * "a", "whsec_" + 32 * "b", None)
    jobs = [GenerationJob(prompt="x", webhook="https://a.example/", webhook_secret=one) for one in secrets]
    for number, job in enumerate(jobs):
        name = f"job-{number}"
        herd.submit(name, job)
        calls = [herd.ledger.submit(name, again, Envelope.for_job(name, QUEUE)) for again in jobs]
        expected = [Submission.EXISTS if again is job else Submission.CONFLICT for again in jobs]
        assert [run_call(herd.redis, call).kind for call in calls] == expected


def test_a_full_queue_takes_nothing_and_says_how_full_it_is(redis: Redis) -> None:
    ledger = Ledger(max_queue=2)
    calls = [ledger.submit(name, JOB, Envelope.for_job(name, QUEUE)) for name in "abc"]
    answers = [run_call(redis, call) for call in calls]
    assert [answer.kind for answer in answers] == ["submitted", "submitted", "queue_full"]
    assert answers[2].num_jobs == 2
    assert run_call(redis, ledger.record("c")) is None
    assert redis.zcard("herd:default:pending") == 2


def test_tenants_do_not_see_each_other(redis: Redis) -> None:
    run_call(redis, Ledger("one").submit("a", JOB, Envelope.for_job("a", "herd.one:tales")))
    assert run_call(redis, Ledger("two").record("a")) is None
    assert run_call(redis, Ledger("two").num_pending()) == 0


#: Arguments of SUBMIT, by their names in its head, that a client in another language may send.
BAD_VALUES = {
    "tokens of 16 digits": ("tokens", "9" * 16),
    "tokens that are none": ("tokens", "many"),
    "tokens that are not given": ("tokens", ""),
    "a part of a token": ("tokens", "1.5"),
    "fewer than no tokens": ("tokens", "-1"),
    "a deadline of 16 digits": ("deadline_ms", "9" * 16),
    "a deadline after 16 digits": ("deadline_ms", "+" + "9" * 16),
    "a deadline that is a date": ("deadline_ms", "2027-01-01T00:00:00Z"),
    "a time to come with an exponent": ("not_before", "1e12"),
    "a time to come of 16 digits": ("not_before", "9" * 16),
    "a time to keep of 16 digits": ("keep_s", "9" * 16),
    "a limit that is no number": ("max_jobs", "x"),
    "a list of another kind": ("lane", "\x06\x16spoilt"),
    "a list of another queue": ("lane", ":other"),
    "an id that is too long": ("id", "a" * 129),
    "an id that ends a text of JSON": ("id", 'a"'),
    "an id of two lines": ("id", "a\n"),
    "an empty id": ("id", ""),
    "a message without a gap for its tag": ("envelope", "{}"),
    "a webhook that is too long": ("webhook", "x" * 2049),
    "a secret that is too long": ("secret", "x" * 95),
}

#: Commands that leave a key so that a job could not wait any more.
SPOILT = {
    "the waiting ones are no sorted set": ("SADD", "herd:default:pending", "x"),
    "the delayed ones are no sorted set": ("SADD", "herd:default:delayed", "x"),
    "a line is no sorted set": ("SADD", f"herd:default:pending:{QUEUE}", "x"),
    "the deadlines are no sorted set": ("SADD", "herd:default:pending:deadlines", "x"),
    "the counts are no hash": ("SADD", "herd:default:waiting", "x"),
    "a count is no number": ("HSET", "herd:default:waiting", f"{QUEUE}:jobs", "x"),
    "a count is no whole number": ("HSET", "herd:default:waiting", f"{QUEUE}:delayed", "1.5"),
    "a count is as large as can be": ("HSET", "herd:default:waiting", f"{QUEUE}:tokens", str(2**63 - 1)),
    "the queue is no list": ("SADD", QUEUE, "x"),
    "one of its lanes is no list": ("SADD", f"{QUEUE}\x06\x16low", "x"),
    "the record is no hash": ("SADD", "herd:default:{a}:job", "x"),
}
#: What a job needs that is due at once, and one that is due later.
SPOILT_FOR_NOW = [name for name in SPOILT if name != "the delayed ones are no sorted set"]
SPOILT_FOR_LATER = [name for name in SPOILT if name != "a line is no sorted set"]
#: A message that brings its job along has been in a list already.
SPOILT_FOR_A_CLAIM = [name for name in SPOILT_FOR_NOW if not SPOILT[name][1].startswith(QUEUE)]


def contents(redis: Redis) -> dict[bytes, Any]:
    keys = [*redis.scan_iter("*")]
    return {key: redis.hgetall(key) if redis.type(key) == b"hash" else redis.dump(key) for key in keys}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_job_that_could_not_be_told_of_later_leaves_nothing(redis: Redis, name: str) -> None:
    spoilt = f"{QUEUE}\x06\x16spoilt"
    redis.sadd(spoilt, "x")
    call = Ledger().submit("a", GenerationJob(prompt="x", not_before=2**52), Envelope.for_job("a", QUEUE))
    assert isinstance(call.what, Script)
    names = [name.removesuffix("#") for name in call.what.head.args]
    argument, value = BAD_VALUES[name]
    args = [value if one == argument else given for one, given in zip(names, call.args, strict=True)]
    before = contents(redis)
    with pytest.raises(ResponseError):
        run_call(redis, replace(call, keys=(*call.keys, spoilt), args=args))
    assert contents(redis) == before


@pytest.mark.parametrize(
    ("name", "not_before"),
    [*((name, None) for name in SPOILT_FOR_NOW), *((name, 2**52) for name in SPOILT_FOR_LATER)],
)
def test_a_job_that_could_not_wait_leaves_nothing(redis: Redis, name: str, not_before: int | None) -> None:
    redis.execute_command(*SPOILT[name])  # type: ignore[no-untyped-call]
    before = contents(redis)
    job = GenerationJob(prompt="x", not_before=not_before, deadline_ms=2**52 + 1)
    with pytest.raises(ResponseError):
        run_call(redis, Ledger().submit("a", job, Envelope.for_job("a", QUEUE)))
    assert contents(redis) == before


@pytest.mark.parametrize("name", SPOILT_FOR_A_CLAIM)
def test_a_job_that_its_message_brings_and_that_could_not_wait_leaves_nothing(
    redis: Redis, name: str
) -> None:
    redis.execute_command(*SPOILT[name])  # type: ignore[no-untyped-call]
    before = contents(redis)
    job = JOB.model_copy(update={"deadline_ms": 2**52})
    with pytest.raises(ResponseError):
        run_call(redis, Ledger().claim("a", "one", job=job, envelope=Envelope.for_job("a", QUEUE)))
    assert contents(redis) == before


def test_many_jobs_of_as_many_tokens_as_can_be_told_do_not_overflow(redis: Redis) -> None:
    call = Ledger().submit("a", JOB, Envelope.for_job("a", QUEUE))
    for number in range(3):
        args = [f"a{number}", *call.args[1:7], str(2**52), *call.args[8:]]
        keys = [key.replace("{a}", f"{{a{number}}}") for key in call.keys]
        before = contents(redis)
        if number == 0:
            run_call(redis, replace(call, keys=keys, args=args))
            continue
        with pytest.raises(ResponseError, match="too large"):
            run_call(redis, replace(call, keys=keys, args=args))
        assert contents(redis) == before


@pytest.mark.parametrize("not_before", [None, 2**52], ids=["now", "later"])
def test_a_full_redis_takes_nothing_of_a_job(redis: Redis, not_before: int | None) -> None:
    """A script that has written once may go on, so the first write must be one that a full Redis refuses."""
    before = contents(redis)
    redis.config_set("maxmemory", 1)
    try:
        job = GenerationJob(prompt="x", not_before=not_before)
        with pytest.raises(ResponseError) as caught:
            run_call(redis, Ledger().submit("a", job, Envelope.for_job("a", QUEUE)))
        assert redis_complaint(caught.value) == FULL
    finally:
        redis.config_set("maxmemory", 0)
    assert contents(redis) == before
