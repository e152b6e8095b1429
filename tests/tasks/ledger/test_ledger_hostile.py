"""What hostile producers put into jobs, messages and records stays data, and harms their own jobs at most."""

import json

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import Swept, Yours
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd, ids, sweep

pytestmark = pytest.mark.redis

NASTY = "'] redis.call('FLUSHALL') --[[ %s %d %1 @tag@ \"]} \\ \x01 ]] {braces} '..'"


def test_nasty_texts_come_back_as_they_went(herd: Herd) -> None:
    job = GenerationJob(prompt=NASTY, model="tales", metadata={"k": NASTY})
    herd.submit("a", job)
    claimed = herd.claim("a")
    assert isinstance(claimed, Yours)
    assert claimed.body == job.to_json()


@pytest.mark.parametrize("job_id", ["south@a", "a b", "a}", "", "x" * 129])
def test_no_script_accepts_an_id_that_can_name_no_job(herd: Herd, job_id: str) -> None:
    """One with an @ names a job of another herd."""
    with pytest.raises(ResponseError, match="the id cannot name a job"):
        herd.submit(job_id)
    assert herd.redis.keys() == []


def test_nasty_headers_do_not_reach_the_delivery_tag(herd: Herd) -> None:
    request = {
        "id": "a",
        "root_id": NASTY,
        "correlation_id": NASTY,
        "reply_to": "@tag@",
        "stamps": {NASTY: 1},
    }
    envelope = Envelope.from_request(request, {"chain": [NASTY]}, QUEUE)
    run_call(herd.redis, herd.ledger.claim("a", "one", job=GenerationJob(prompt="x"), envelope=envelope))
    herd.pass_lease("a")
    assert sweep(herd) == Swept(("a",))
    message = json.loads(herd.messages()[0])
    assert message["properties"]["delivery_tag"].startswith("a:1:")
    assert message["properties"]["correlation_id"] == NASTY
    assert message["headers"]["root_id"] == NASTY


def test_a_workers_name_is_quoted_in_the_end_that_a_script_writes(herd: Herd) -> None:
    ledger = Ledger(worker=NASTY, lease_ms=60_000)
    herd.submit("a")
    run_call(herd.redis, ledger.claim("a", "one"))
    herd.pass_lease("a")
    run_call(herd.redis, ledger.cancel("a"))
    (last,) = herd.events("a")
    assert isinstance(last, End)
    assert last.worker == NASTY


#: A field of a record, and what somebody has put there; without a field: in place of the record.
DAMAGES = [
    ("envelope", "no gap for a tag"),
    ("queue", "herd:default:leases"),
    ("queue", "herd.other:tales"),
    ("deadline_ms", "soon"),
    (None, "no record at all"),
]


def damage(herd: Herd, job_id: str, field: str | None, value: str) -> None:
    key = herd.ledger.job_key(job_id)
    if field is None:
        herd.redis.set(key, value)
    else:
        herd.redis.hset(key, field, value)


@pytest.mark.parametrize(("field", "value"), [*DAMAGES, ("waits", "many")])
def test_a_broken_record_holds_up_no_other_job(herd: Herd, field: str | None, value: str) -> None:
    for name in ("broken", "good"):
        herd.submit(name)
        herd.pass_time(name, 20_000)
    herd.redis.delete(QUEUE)
    damage(herd, "broken", field, value)
    herd.redis.zadd("herd:default:leases", {"broken": 1})
    assert sweep(herd) == Swept(("good",))
    assert ids(herd) == ["good"]
    assert not herd.redis.exists("herd.other:tales")
    sweep(herd)
    assert ids(herd).count("good") == 1


@pytest.mark.parametrize("index", ["herd:default:pending:herd.tales", "herd:default:leases"])
@pytest.mark.parametrize(("field", "value"), DAMAGES)
def test_a_broken_record_is_tried_ever_more_seldom(
    herd: Herd, field: str | None, value: str, index: str
) -> None:
    herd.submit("broken")
    if index.endswith("leases"):
        herd.claim("broken")
    herd.redis.delete(QUEUE)
    damage(herd, "broken", field, value)
    put_off = []
    for _ in range(12):
        herd.redis.zadd(index, {"broken": 1})
        sweep(herd)
        sweep(herd)
        wait_ms = herd.redis.zscore(index, "broken") - herd.redis.time()[0] * 1000
        put_off.append(round(wait_ms / SWEEP_PATIENCE_MS))
    assert put_off == sorted(put_off)
    assert put_off[-1] == 255


def test_a_tenants_records_can_name_its_own_queues_only(redis: Redis) -> None:
    acme = Herd(redis, Ledger("acme", lease_ms=60_000))
    run_call(redis, acme.ledger.submit("a", JOB, Envelope.for_job("a", "herd.acme:tales")))
    assert redis.llen("herd.acme:tales") == 1
    for queue in ("herd.tales", "herd.acm:tales", "herd.other:tales", "herd.acme:a:b"):
        with pytest.raises(ResponseError, match="does not belong to the tenant"):
            run_call(redis, acme.ledger.submit("b", JOB, Envelope.for_job("b", queue)))
        assert not redis.exists(queue, acme.ledger.job_key("b"))


def test_a_queue_that_is_no_list_holds_up_no_other_queue(herd: Herd) -> None:
    run_call(
        herd.redis,
        herd.ledger.submit("broken", GenerationJob(prompt="x"), Envelope.for_job("broken", "herd.x")),
    )
    herd.redis.delete("herd.x")
    herd.redis.set("herd.x", "no list")
    herd.submit("good")
    herd.redis.delete(QUEUE)
    for name in ("broken", "good"):
        herd.pass_time(name, 20_000)
    assert sweep(herd) == Swept(("good",))
    assert ids(herd) == ["good"]


def test_a_message_that_lies_about_its_time_costs_a_push_at_most(herd: Herd) -> None:
    herd.submit("a")
    herd.pass_time("a", 20_000)
    lie = b'{"properties":{"delivery_tag":"x:1:' + b"9" * 400 + b'"}}'
    herd.redis.rpush(QUEUE, lie, b'{"delivery_tag":"' + b"1:" * 8000 + b'"}')
    assert sweep(herd).jobs in ((), ("a",))
    assert sweep(herd) == Swept()
