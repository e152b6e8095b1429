"""The message that we write by hand, read by kombu and by a Celery worker."""

import base64
import json
import os
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from celery import Celery, Task
from celery.contrib.testing.worker import start_worker
from celery.result import AsyncResult
from celery.signals import task_prerun
from kombu import Connection
from redis import Redis

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.tasks import Client
from llama_herd.tasks.app import make_app
from llama_herd.tasks.protocol.message import (
    TASK_NAME,
    Envelope,
    MessageHead,
    known_traceparent,
    queue_name,
    trace_id_of,
)
from llama_herd.tasks.settings import Settings
from tests.tasks.herd import QUEUE

pytestmark = pytest.mark.redis


def body_of(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))


def test_kombu_reads_what_submit_pushes(redis_url: str) -> None:
    with Client(redis_url) as client:
        job_id = client.submit(prompt="x")
    with Connection(redis_url) as connection, connection.SimpleQueue(QUEUE) as queue:
        message = queue.get(timeout=30)
        assert (message.headers["task"], message.headers["id"]) == (TASK_NAME, job_id)
        assert message.payload[:2] == [[], {}]
        assert message.delivery_tag.startswith(f"{job_id}:1:")
        message.reject(requeue=True)
        again = queue.get(timeout=30)
        assert again.headers["id"] == job_id
        again.ack()


def test_an_envelope_of_a_bare_message_keeps_its_links_and_drops_its_prompt() -> None:
    request = {
        "id": "a",
        "lang": "js",
        "root_id": "r",
        "parent_id": "p",
        "argsrepr": "('secret',)",
        "kwargsrepr": "{'prompt': 'secret'}",
        "args": ["secret"],
        "kwargs": {"prompt": "secret"},
        "eta": "2020-01-01T00:00:00",
        "expires": None,
        "retries": 2,
        "hostname": "h",
        "reply_to": "reply-queue",
        "correlation_id": "corr",
        "delivery_info": {"routing_key": "herd:other:pending", "exchange": "herd", "priority": 3},
        "stamps": {"gap": "@tag@"},
    }
    embed = {"callbacks": [{"task": "next"}], "errbacks": None, "chain": [{"task": "then"}], "chord": None}
    envelope = Envelope.from_request(request, embed, QUEUE)
    assert envelope.queue == QUEUE
    assert "secret" not in envelope.text
    message = json.loads(envelope.with_tag("a:1:5"))
    assert message["headers"] == {
        "lang": "js",
        "root_id": "r",
        "parent_id": "p",
        "retries": 2,
        "stamps": {"gap": "@tag@"},
        "task": TASK_NAME,
        "id": "a",
        "argsrepr": "()",
        "kwargsrepr": "{}",
    }
    assert message["properties"]["delivery_tag"] == "a:1:5"
    assert message["properties"]["reply_to"] == "reply-queue"
    assert message["properties"]["correlation_id"] == "corr"
    assert body_of(message) == [[], {}, embed]


@pytest.fixture
def worker(redis_url: str) -> Iterator[Celery]:
    """Our app with Celery's own pool and consumer: it reads our messages, but has no engine."""
    import_module("llama_herd.tasks.generate")  # as `celery worker` does before it builds a worker
    app = make_app(Settings(redis_url=redis_url))
    app.conf.worker_consumer = "celery.worker.consumer:Consumer"
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        yield app


@pytest.fixture
def runs() -> Iterator[list[dict[str, Any]]]:
    """What the task is called with."""
    runs: list[dict[str, Any]] = []

    def look(task: Task, kwargs: dict[str, Any], **_: Any) -> None:
        runs.append({"id": task.request.id, "kwargs": kwargs, "callbacks": task.request.callbacks})

    task_prerun.connect(look)
    yield runs
    task_prerun.disconnect(look)


@pytest.mark.long
def test_a_celery_worker_runs_what_submit_pushes(
    worker: Celery, runs: list[dict[str, Any]], redis_url: str, redis: Redis
) -> None:
    with Client(redis_url) as client:
        job_id = client.submit(prompt="x")
    with pytest.raises(GenerationError, match="no engine"):
        AsyncResult(job_id, app=worker).get(timeout=30)
    assert runs == [{"id": job_id, "kwargs": {}, "callbacks": None}]
    assert 0 < redis.ttl(f"celery-task-meta-{job_id}") <= Settings().result_ttl_s


@pytest.mark.long
def test_a_bare_send_task_goes_to_the_same_queue(worker: Celery, runs: list[dict[str, Any]]) -> None:
    result = worker.send_task(TASK_NAME, kwargs={"prompt": "x"}, queue=queue_name("tales"))
    with pytest.raises(GenerationError, match="no engine"):
        result.get(timeout=30)
    assert [run["kwargs"] for run in runs] == [{"prompt": "x"}]


def test_tenants_have_queues_of_their_own() -> None:
    assert queue_name("m") == "herd.m"
    assert queue_name("m", "acme") == "herd.acme:m"


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def test_a_job_is_of_the_trace_that_its_sender_names() -> None:
    assert trace_id_of({"traceparent": TRACEPARENT}) == TRACE_ID
    ours = json.loads(Envelope.for_job("a", QUEUE, traceparent=TRACEPARENT).text)
    assert trace_id_of(ours["headers"]) == TRACE_ID
    bare = Envelope.from_request({"id": "a", "traceparent": TRACEPARENT}, None, QUEUE)
    assert trace_id_of(json.loads(bare.text)["headers"]) == TRACE_ID


HEAD = MessageHead("a", "herd.generate", "gen12@host")
#: Words that look like headers, and are none.
WORDS = '"headers": {"id": "word", "task": "word", "origin": "word"}'


def raw_message(**fields: Any) -> bytes:
    headers = {
        "kwargsrepr": repr({"prompt": WORDS}),
        "id": "a",
        "task": "herd.generate",
        "origin": "gen12@host",
    }
    return json.dumps({"body": WORDS, "headers": headers, **fields}).encode()


def test_the_head_of_celerys_own_message_is_found(redis: Redis, redis_url: str) -> None:
    with Celery(broker=redis_url) as app:
        sent = app.send_task("their.task", kwargs={"prompt": WORDS}, queue="theirs")
    head = MessageHead.find_in(redis.lindex("theirs", 0))  # type: ignore[arg-type]
    assert head == (sent.id, "their.task", f"gen{os.getpid()}@{socket.gethostname()}")


@pytest.mark.parametrize(
    "raw",
    [
        raw_message(),
        raw_message().replace(b" ", b""),
        raw_message()[:-2],
        raw_message(body="x" * 9_000_000),
        raw_message(properties={"id": "no header"}),
        b'\xff{"id": "no header",' + raw_message()[1:],
    ],
    ids=["whole", "without spaces", "cut off", "long", "with properties", "no UTF-8"],
)
def test_a_head_is_found_in_what_cannot_be_read(raw: bytes) -> None:
    assert MessageHead.find_in(raw) == HEAD


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\x00",
        json.dumps({"prompt": WORDS, "metadata": {"id": "word", "task": "word", "origin": "word"}}).encode(),
        json.dumps({"body": WORDS, "headers": {}, "properties": {"correlation_id": "a"}}).encode(),
        json.dumps({"headers": {"id": 7, "task": ["word"], "origin": "word" * 99}}).encode(),
    ],
)
def test_words_are_no_head(raw: bytes) -> None:
    assert MessageHead.find_in(raw) == (None, None, None)


@pytest.mark.parametrize("task_id", ["two words", 'a\n"é', "a\x1b"])
def test_what_is_no_plain_name_is_not_told(task_id: str) -> None:
    raw = raw_message(headers={"id": task_id, "task": "t", "stamps": {"id": "another"}})
    assert MessageHead.find_in(raw)[:2] == (None, "t")


WRONG = [
    *(None, 7, "", "x", TRACE_ID, TRACEPARENT.upper(), f"{TRACEPARENT} ", f"{TRACEPARENT}-x"),
    *(TRACEPARENT.replace("00-", "ff-", 1), TRACEPARENT.replace(TRACE_ID, "0" * 32)),
    TRACEPARENT.replace("00f067aa0ba902b7", "0" * 16),
]


@pytest.mark.parametrize("header", WRONG)
def test_a_header_that_names_no_trace_is_not_kept(header: Any) -> None:
    assert trace_id_of({"traceparent": header}) is None
    bare = Envelope.from_request({"id": "a", "traceparent": header}, None, QUEUE)
    assert "traceparent" not in json.loads(bare.text)["headers"]


@pytest.mark.parametrize("tail", ["", "-", "-more", "-00-\xe9"])
@pytest.mark.parametrize(("flags", "known"), [("00", "00"), ("01", "01"), ("fe", "00"), ("ff", "01")])
def test_a_header_of_a_later_version_is_one_of_ours(tail: str, flags: str, known: str) -> None:
    for version in range(1, 255):
        later = f"{version:02x}-{TRACE_ID}-00f067aa0ba902b7-{flags}{tail}"
        assert known_traceparent(later) == f"00-{TRACE_ID}-00f067aa0ba902b7-{known}"
        bare = Envelope.from_request({"id": "a", "traceparent": later}, None, QUEUE)
        assert json.loads(bare.text)["headers"]["traceparent"] == known_traceparent(later)
        assert known_traceparent(f"{later[:55]}x") is None


def test_our_client_refuses_a_header_that_names_no_trace(redis_url: str) -> None:
    with Client(redis_url) as client, pytest.raises(InvalidJob, match="traceparent: must be like the W3C's"):
        client.submit(prompt="x", traceparent="my-trace")


def test_a_job_that_is_submitted_again_may_be_of_another_trace(redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="a", traceparent=TRACEPARENT)
        assert client.submit(prompt="x", job_id="a") == "a"
