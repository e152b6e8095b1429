"""What the gateway says where Redis has lost events that it has passed on, as in a failover."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from redis import Redis

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.protocol.events import parse_event
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import QUEUE, Herd, end, started, token

pytestmark = pytest.mark.redis

BODY = {"model": "tales", "prompt": "x"}


def recorded(job_id: str) -> Iterable[EmitEntry]:
    """What another worker makes of a job of which it has only the start."""
    yield started(job_id)
    yield started(job_id, 2, epoch=2)
    yield from (token(job_id, 3 + i, i, epoch=2) for i in range(3))
    yield end(job_id, 6, 3, epoch=2)


def rewrite(herd: Herd, job_id: str, entries: Iterable[EmitEntry]) -> None:
    """Let these be the events of the job; nobody hears of them."""
    herd.redis.delete(herd.ledger.events_key(job_id))
    for entry in entries:
        herd.redis.xadd(herd.ledger.events_key(job_id), {"e": entry.event}, id=f"{entry.seq}-0")


def test_a_stream_that_was_passed_on_ends_with_an_error(gateway: GatewayThread, herd: Herd) -> None:
    with gateway.send("POST", "/v1/completions", {**BODY, "stream": True}) as answer:
        job_id = str(answer.getheader("X-Job-Id"))
        herd.claimed(job_id)
        herd.emit("one", started(job_id), token(job_id, 2, 0), token(job_id, 3, 1))
        events = events_of(answer)
        texts = [next(events).json["choices"][0]["text"] for _ in range(2)]
        assert texts == ["<2.1>", "<3.1>"]
        rewrite(herd, job_id, recorded(job_id))
        *_, last = events
        assert last.json["error"]["code"] == "stream_rewritten"


def test_an_event_source_that_comes_again_is_told(gateway: GatewayThread, herd: Herd) -> None:
    """A browser comes again by itself, with the id of the last event that it has."""
    job_id = gateway.ask("POST", "/v1/jobs", BODY).json["id"]
    place = f"/v1/jobs/{job_id}/events"
    herd.claimed(job_id)
    herd.emit("one", started(job_id), token(job_id, 2, 0), token(job_id, 3, 1))
    with gateway.send("GET", place) as answer:
        read = [event.id for event in islice((one for one in events_of(answer) if one.id), 3)]
    rewrite(herd, job_id, recorded(job_id))
    for is_final in (False, True):
        if is_final:
            herd.redis.hset(herd.ledger.job_key(job_id), mapping={"state": "done", "seq": 3})
        with gateway.send("GET", place, headers={"Last-Event-ID": str(read[2])}) as answer:
            assert b"stream_rewritten" in answer.read()
    with gateway.send("GET", place, headers={"Last-Event-ID": str(read[0])}) as answer:
        assert [event.id for event in events_of(answer)][-1] == parse_event(
            [*recorded(job_id)][-1].event
        ).cursor


def test_a_whole_answer_is_that_of_the_record(gateway: GatewayThread, redis: Redis, herd: Herd) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.ask, "POST", "/v1/completions", BODY)
        wait_until(lambda: redis.llen(QUEUE), "submitted")
        job_id = json.loads(redis.lrange(QUEUE, 0, -1)[0])["headers"]["id"]
        herd.claimed(job_id)
        herd.wait_for_listener(job_id)
        redis.config_resetstat()
        rewrite(herd, job_id, (started(job_id), token(job_id, 2, 0), token(job_id, 3, 1)))
        wait_until(lambda: "cmdstat_xrange" in redis.info("commandstats"), "it has read what is there")
        rewrite(herd, job_id, recorded(job_id))
        answer = asked.result(PATIENCE_S)
    assert answer.json["choices"][0]["text"] == "<3.2><4.2><5.2>"
