"""SUBMIT and the message that it pushes."""

import json

import pytest
from redis import Redis

from llama_herd.tasks.answers import Submission, Submitted
from llama_herd.tasks.call import run
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd

pytestmark = pytest.mark.redis


def test_a_submitted_job_has_a_record_a_pending_mark_and_a_message(herd: Herd) -> None:
    answer = run(herd.redis, herd.ledger.submit("a", JOB, Envelope.of("a", QUEUE)))
    assert answer == Submitted(Submission.SUBMITTED)
    record = run(herd.redis, herd.ledger.record("a"))
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
    again = run(herd.redis, herd.ledger.submit("a", JOB, Envelope.of("a", QUEUE)))
    other = run(herd.redis, herd.ledger.submit("a", GenerationJob(prompt="b"), Envelope.of("a", QUEUE)))
    assert (again.kind, other.kind) == (Submission.EXISTS, Submission.CONFLICT)
    assert herd.redis.hgetall(herd.ledger.job_key("a")) == before
    assert len(herd.messages()) == 1


def test_a_full_queue_takes_nothing_and_says_how_full_it_is(redis: Redis) -> None:
    ledger = Ledger(max_queue=2)
    calls = [ledger.submit(name, JOB, Envelope.of(name, QUEUE)) for name in "abc"]
    answers = [run(redis, call) for call in calls]
    assert [answer.kind for answer in answers] == ["submitted", "submitted", "queue_full"]
    assert answers[2].num_jobs == 2
    assert run(redis, ledger.record("c")) is None
    assert redis.zcard("herd:default:pending") == 2


def test_tenants_do_not_see_each_other(redis: Redis) -> None:
    run(redis, Ledger("one").submit("a", JOB, Envelope.of("a", "herd.one:tales")))
    assert run(redis, Ledger("two").record("a")) is None
    assert run(redis, Ledger("two").num_pending()) == 0
