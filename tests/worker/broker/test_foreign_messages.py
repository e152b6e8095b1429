"""What a Celery client may send besides plain JSON: it works, or whoever waits is told why not."""

import json
import os
import pickle
import secrets
import socket
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import InvalidTaskError
from hypothesis import Phase, given, settings, strategies as st
from kombu.utils.json import dumps
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.message import KIND_OF_TASK, TASK_NAME
from tests.local.processes import PATIENCE_S, wait_until
from tests.local.tended_worker import TendedWorker
from tests.worker.broker.kombu_values import HEADERS, nested
from tests.worker.broker.test_hostile_messages import (
    BOMBS,
    JOB,
    MAX_BYTES,
    QUEUE,
    QUICK_BOMBS,
    body_of,
    client as client,
    message,
    redis as redis,
    worker as worker,
)

pytestmark = [pytest.mark.redis, pytest.mark.worker]

#: Bombs whose id nobody reads.
NO_IDS = ("64 MiB", "a byte too long", "deep message", "huge integer in the message")


@pytest.fixture
def shop(server: EmbeddedRedis, worker: TendedWorker) -> Celery:
    """Somebody's own app, which knows nothing of us."""
    return Celery(broker=server.url, backend=server.url, set_as_current=False)


@pytest.mark.parametrize("compression", ["gzip", "zlib", "bzip2", "lzma"])
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_compressed_message_and_one_of_the_first_protocol_are_run(
    compression: str, protocol: int, shop: Celery, client: Client
) -> None:
    shop.conf.task_protocol = protocol
    sent = shop.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, compression=compression, expires=60)
    assert sent.get(timeout=PATIENCE_S)["finish_reason"] == "length"
    assert client.result(sent.id).finish_reason == "length"


@pytest.mark.parametrize("protocol", [1, 2])
def test_links_are_followed_in_both_protocols(protocol: int, shop: Celery, redis: Redis) -> None:
    shop.conf.task_protocol = protocol
    link = shop.signature("then", queue=f"next-{protocol}")
    shop.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, link=link).get(timeout=PATIENCE_S)
    wait_until(lambda: redis.llen(f"next-{protocol}"), "the link is sent")


@pytest.mark.parametrize("serializer", ["pickle", "yaml", "msgpack"])
def test_who_sends_no_json_is_told_and_nothing_is_run(
    serializer: str, shop: Celery, client: Client, redis: Redis
) -> None:
    pytest.importorskip(serializer)
    sent = shop.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, serializer=serializer)
    with pytest.raises(GenerationError, match=r"message: cannot be read .*Fix: send JSON"):
        sent.get(timeout=PATIENCE_S)
    assert client.result(sent.id).finish_reason == "error"
    assert run_call(redis, DeadLetters().letters(1))[0].reason == "ContentDisallowed"


def test_of_the_first_protocol_the_id_is_known_though_its_body_cannot_be_read(shop: Celery) -> None:
    shop.conf.task_protocol = 1
    sent = shop.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, serializer="pickle")
    with pytest.raises(InvalidTaskError, match="the message cannot be read"):
        sent.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", [kind for kind in QUICK_BOMBS if kind.values[0] not in NO_IDS])
def test_a_bomb_is_an_error_of_its_job(kind: str, client: Client, redis: Redis) -> None:
    raw = json.loads(BOMBS[kind]())
    redis.lpush(QUEUE, json.dumps(raw))
    error = client.result(raw["headers"]["id"], timeout_s=PATIENCE_S).error
    assert error is not None
    assert error.code == "invalid_job"
    assert not Path("unpickled").exists()


@pytest.mark.parametrize(
    "headers",
    [
        {"shadow": {"a": 1}},
        {"compression": "zstd"},
        {"compression": "zlib"},
        {"compression": 7},
        {"herd_refusal": "mine"},
    ],
)
def test_a_header_that_nobody_can_read_is_an_error_of_the_job(
    headers: dict[str, Any], client: Client, redis: Redis
) -> None:
    job_id = str(uuid4())
    redis.lpush(QUEUE, message(body_of(json.dumps(JOB)), id=job_id, **headers))
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert result.finish_reason == ("length" if "herd_refusal" in headers else "error")


@pytest.mark.parametrize("num_examples", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_no_value_of_any_header_or_property_ends_a_worker(
    num_examples: int, shop: Celery, client: Client, redis: Redis
) -> None:
    """Each header and property of Celery's, and whatever kombu's JSON can carry."""
    shop.send_task(TASK_NAME, kwargs=JOB, queue="looked at")
    sent = json.loads(redis.lindex("looked at", 0) or b"")
    places = [*product(["headers"], HEADERS), *product(["properties"], sent["properties"])]

    def law(values: list[Any]) -> None:
        ids = []
        for (part, name), value in zip(places, values, strict=True):
            ids.append(str(uuid4()))
            raw = json.loads(message(body_of(json.dumps(JOB)), id=ids[-1]))
            redis.lpush(QUEUE, dumps(raw | {part: {**raw[part], name: value}}))
        client.result(client.submit(**JOB), timeout_s=PATIENCE_S)
        letters = {letter.task_id for letter in run_call(redis, DeadLetters().letters(1000))}
        for job_id in ids:
            assert job_id in letters or client.result(job_id, timeout_s=PATIENCE_S)

    values = st.lists(nested, min_size=len(places), max_size=len(places))
    limits = settings(max_examples=num_examples, phases=[Phase.generate], database=None)
    limits(given(values)(law))()


@pytest.mark.parametrize("task", KIND_OF_TASK)
@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}])
def test_a_message_that_is_too_long_is_told_so_with_both_numbers(
    options: dict[str, str], task: str, shop: Celery, client: Client, redis: Redis
) -> None:
    text = secrets.token_hex(2 * MAX_BYTES)
    sent = shop.send_task(task, kwargs={"prompt": text}, queue=QUEUE, **options)
    with pytest.raises(GenerationError, match=rf"message: must be at most {MAX_BYTES} bytes, got [0-9]+"):
        sent.get(timeout=PATIENCE_S)
    assert client.result(sent.id).finish_reason == "error"
    assert run_call(redis, DeadLetters().letters(1))[0].reason == "TooLong"


@pytest.mark.parametrize("task", KIND_OF_TASK)
@pytest.mark.parametrize("task_id", ["x}y", "two words", "a\n", "\u00e9", "x" * 129])
def test_a_task_id_that_can_name_no_job_fails_for_who_waits(
    task_id: str, task: str, shop: Celery, redis: Redis
) -> None:
    sent = shop.send_task(task, kwargs=JOB, queue=QUEUE, task_id=task_id)
    with pytest.raises(
        GenerationError, match=r"has an id that cannot name a job: 1 to 128 .* Fix: another task_id"
    ):
        sent.get(timeout=PATIENCE_S)
    letter = run_call(redis, DeadLetters().letters(1))[0]
    assert letter.reason == "its id cannot name a job"
    assert not [key for key in redis.keys("herd:*") if task_id.encode() in key]


def test_a_message_that_names_no_known_task_fails_for_who_waits(shop: Celery, redis: Redis) -> None:
    sent = shop.send_task("no.such.task", queue=QUEUE)
    with pytest.raises(InvalidTaskError, match=r"unknown task, no\.such\.task\. Fix: send it to a queue"):
        sent.get(timeout=PATIENCE_S)
    letter = run_call(redis, DeadLetters().letters(1))[0]
    assert (letter.task_id, letter.task) == (sent.id, "no.such.task")
    assert letter.origin == f"gen{os.getpid()}@{socket.gethostname()}"
    assert letter.worker == "guarded@test"


def test_a_pickled_message_of_another_task_fails_for_who_waits(shop: Celery) -> None:
    sent = shop.send_task("celery.backend_cleanup", queue=QUEUE, serializer="pickle")
    with pytest.raises(InvalidTaskError, match="ContentDisallowed"):
        sent.get(timeout=PATIENCE_S)


def test_a_result_that_is_there_is_kept_when_its_id_comes_again_in_a_broken_message(
    shop: Celery, client: Client, redis: Redis
) -> None:
    sent = shop.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE)
    result = sent.get(timeout=PATIENCE_S)
    num_letters = redis.xlen(Ledger().key("dead"))
    for task in (TASK_NAME, "no.such.task"):
        redis.lpush(QUEUE, message(pickle.dumps(7), "application/x-python-serialize", id=sent.id, task=task))
    wait_until(lambda: redis.xlen(Ledger().key("dead")) == num_letters + 2, "both are put aside")
    client.result(client.submit(**JOB), timeout_s=PATIENCE_S)
    assert shop.AsyncResult(sent.id).get(timeout=PATIENCE_S) == result
    assert client.result(sent.id).finish_reason == "length"
