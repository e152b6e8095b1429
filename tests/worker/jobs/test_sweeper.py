"""Whoever looks after jobs goes on, whatever Redis answers to one of its questions."""

import json
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from llama_herd.ops.logs import JobLine
from llama_herd.tasks.ledger.answers import JobOrigin
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import UnreadableReply, run_call, run_calls
from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS, binding_key
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker.broker.message_notes import MessageNotes
from llama_herd.worker.jobs.link_watch import LinkWatch
from llama_herd.worker.jobs.lost_messages import LostMessages
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.sweeper import Sweeper
from tests.chaos.harness.patience import wait_until
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, started
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def herd(redis: Redis) -> Herd:
    return Herd(redis, Ledger(lease_ms=60_000, worker="w"))


class RefusedOverflow:
    """Of which Redis will hear nothing."""

    def shed(self) -> None:
        raise ResponseError("WRONGTYPE")


@pytest.mark.long
def test_lost_messages_come_back_though_nothing_can_be_given_away(redis: Any) -> None:
    herd = Herd(redis, Ledger())
    herd.submit("a")
    redis.delete(QUEUE)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    redis.hset(SWEEP, "last", redis.time()[0] * 1000)  # another worker has swept
    tenancies = alone(new_tenancy(redis, herd.ledger))
    lost = LostMessages(tenancies.redis, MessageNotes.at("herd:acme:unacked"))
    sweeper = Sweeper(tenancies, cast("Overflow", RefusedOverflow()), LinkWatch(tenancies), lost)
    with capture_logs() as lines:
        sweeper.start()
        try:
            wait_until(lambda: redis.llen(QUEUE), "its message is pushed again")
        finally:
            sweeper.stop()
    assert [one["error"] for one in lines if one["event"] == "sweep failed"] == ["WRONGTYPE"]


def test_separators_are_known_as_long_as_producers_declare_them(herd: Herd) -> None:
    """Each is told once, and none is kept that a producer has made up and dropped again."""
    tenancies = alone(new_tenancy(herd.redis, herd.ledger))
    (queue,) = tenancies.queues
    lost = LostMessages(tenancies.redis, MessageNotes.at("herd:acme:unacked"))
    sweeper = Sweeper(tenancies, cast("Overflow", RefusedOverflow()), LinkWatch(tenancies), lost)
    message = json.dumps({"properties": {"delivery_info": {"routing_key": queue}}})
    with capture_logs() as logs:
        for number in range(20):
            separator = f"<{number}>"
            herd.redis.delete(binding_key(queue))
            herd.redis.sadd(binding_key(queue), f"{queue}{separator}{separator}{queue}")
            for _ in range(2):
                herd.redis.rpush(f"{queue}{separator}3", message)
                sweeper._gather()
    assert [one["separator"] for one in logs] == [repr(f"<{number}>") for number in range(20)]
    assert sweeper._known_separators == {(queue, "<19>")}


def test_a_job_that_is_put_back_is_told_with_its_origin(herd: Herd) -> None:
    envelope = Envelope.for_job("a", "herd.tales", traceparent=f"00-{TRACE_ID}-00f067aa0ba902b7-01")
    run_call(herd.redis, herd.ledger.submit("a", JOB, envelope))
    herd.claimed("a")
    herd.emit("one", started("a"))
    herd.redis.delete(QUEUE)
    herd.fall_silent("a")
    now_s = herd.redis.time()[0]
    herd.redis.hset(SWEEP, mapping={"last": (now_s - 11) * 1000, "hold": 0, "gaps": 0})
    tenancy = new_tenancy(herd.redis, herd.ledger)
    tenancies = alone(tenancy)
    lost = LostMessages(tenancies.redis, MessageNotes.at("herd:acme:unacked"))
    sweeper = Sweeper(tenancies, cast("Overflow", RefusedOverflow()), LinkWatch(tenancies), lost)
    with capture_logs() as lines:
        sweeper._sweep()
    (line,) = lines
    assert line["event"] == "job put back into the queue"
    assert JobLine(*(line[name] for name in JobLine._fields)) == ("a", 1, "w", "tales", "default", TRACE_ID)
    assert tenancy.num_put_back == 1


@pytest.mark.parametrize(
    "envelope",
    ["no JSON", "[]", "[" * 100_000, '{"headers": 1}', '{"headers": {"traceparent": [1]}}'],
    ids=lambda envelope: envelope[:20],
)
def test_a_damaged_envelope_costs_no_sweep(herd: Herd, envelope: str) -> None:
    herd.submit("a")
    herd.redis.hset(herd.ledger.job_key("a"), "envelope", envelope)
    (origin,) = run_calls(herd.redis, [herd.ledger.origin("a")])
    assert origin == JobOrigin("tales", 0, None) or isinstance(origin, UnreadableReply)
