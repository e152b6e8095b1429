"""What comes by the queue and means harm: put aside before it is unpacked or read, and the worker lives."""

import base64
import bz2
import json
import lzma
import pickle
import uuid
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import DeadLetter
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.local.processes import ForkedWorker, held, kombu_note, standstill

pytestmark = [pytest.mark.redis, pytest.mark.worker]

QUEUE = "herd.m"
MIB = 1 << 20
MAX_BYTES = WorkerSettings.model_fields["max_message_bytes"].default
JOB: dict[str, Any] = {"prompt": "a canary", "sampling": {"max_tokens": 2}}


class Bomb:
    """Runs a command in whoever unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


def message(body: bytes, content_type: str = "application/json", **headers: Any) -> bytes:
    """A message of Celery's protocol around these bytes."""
    top = {
        "body": base64.b64encode(body).decode(),
        "content-type": content_type,
        "content-encoding": "binary" if content_type != "application/json" else "utf-8",
        "headers": {"lang": "py", "task": "herd.generate", "id": str(uuid.uuid4()), **headers},
        "properties": {
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "body_encoding": "base64",
        },
    }
    return json.dumps(top).encode()


def body_of(job: str) -> bytes:
    return b"[[], %s, {}]" % job.encode()


@cache
def zeros() -> bytes:
    return body_of(json.dumps(JOB | {"prompt": "0" * (200 * MIB // 8)}))


YAML = b"[[], !!python/object/apply:pathlib.Path.touch [unpickled], {}]"

BOMBS = {
    "gzip": lambda: message(zlib.compress(zeros()), compression="application/x-gzip"),
    "zlib": lambda: message(zlib.compress(zeros()), compression="zlib"),
    "bzip2": lambda: message(bz2.compress(zeros()), compression="application/x-bz2"),
    "lzma": lambda: message(lzma.compress(zeros()), compression="application/x-lzma"),
    "pickle": lambda: message(pickle.dumps(((), {"prompt": Bomb()}, {})), "application/x-python-serialize"),
    "yaml": lambda: message(YAML, "application/x-yaml"),
    "msgpack": lambda: message(b"\x93\x90\x80\x80", "application/x-msgpack"),
    "64 MiB": lambda: message(body_of(json.dumps(JOB | {"prompt": "x" * (64 * MIB)}))),
    "a byte too long": lambda: message(body_of("{}")).ljust(MAX_BYTES + 1),
    "deep message": lambda: b'{"body":' + b"[" * MIB,
    "deep body": lambda: message(b"[" * MIB),
    "huge integer in the message": lambda: b'{"body": ' + b"9" * 9999 + b"}",
    "huge integer in the body": lambda: message(body_of('{"priority": %s}' % ("9" * 9999))),
}
#: Of packed ones, which are refused by their header, two suffice.
QUICK_BOMBS = [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("bzip2", "lzma"))) for kind in BOMBS]


def first_protocol(job_id: str) -> bytes:
    """A message of Celery's first protocol, which names task and job in the body."""
    body = {"task": "herd.generate", "id": job_id, "args": [], "kwargs": JOB}
    top = json.loads(message(json.dumps(body).encode()))
    return json.dumps(top | {"headers": {}}).encode()


#: Kombu's JSON of a decimal; to read it raises an ArithmeticError.
NO_DECIMAL = {"__type__": "decimal", "__value__": "x"}

#: What would end the worker in one of its threads, after the message was taken for a good one.
KILLERS = {
    "id that is no UTF-8": lambda: first_protocol("\ud800"),
    "decimal that is none": lambda: message(body_of(json.dumps(JOB)), a=NO_DECIMAL),
    "name that is a dictionary": lambda: message(body_of(json.dumps(JOB)), shadow={"a": 1}),
}

#: What reads as a job's arguments, but is none: the job ends with an error.
WRONG_JOBS = {
    "deep field": '{"prompt": "a", "metadata": %s}' % ('{"a":' * 500 + "1" + "}" * 500),
    "no number": '{"prompt": "a", "sampling": {"temperature": NaN}}',
    "infinity": '{"prompt": "a", "sampling": {"temperature": 1e999}}',
}


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, endless_settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkedWorker]:
    folder = tmp_path_factory.mktemp("log")
    settings = endless_settings.model_copy(update={"redis_url": server.url, "model_name": "m"})
    with ForkedWorker(settings, "guarded@test", folder / "log", **standstill(folder)) as worker:
        yield worker


@pytest.fixture
def redis(server: EmbeddedRedis, worker: ForkedWorker) -> Iterator[Redis]:
    # For 64 MiB a busy machine takes longer than the five seconds that redis-py waits.
    with Redis.from_url(server.url, socket_timeout=PATIENCE_S) as redis:
        yield redis


@pytest.fixture
def client(server: EmbeddedRedis, worker: ForkedWorker) -> Iterator[Client]:
    with Client(server.url, model="m") as client:
        yield client


def dead(redis: Redis) -> list[DeadLetter]:
    return run_call(redis, DeadLetters().letters(1000))


@pytest.mark.parametrize("kind", QUICK_BOMBS)
def test_a_bomb_is_put_aside_with_its_reason_and_never_goes_off(
    kind: str, worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    process = psutil.Process(worker.process.pid)
    num_letters, memory = len(dead(redis)), process.memory_info().rss
    redis.lpush(QUEUE, BOMBS[kind]())
    wait_until(lambda: len(dead(redis)) > num_letters, f"{kind} put aside")
    assert dead(redis)[0].reason
    assert client.result(client.submit(**JOB), timeout_s=20).finish_reason == "length"
    assert worker.process.poll() is None
    assert process.memory_info().rss - memory < 100 * MIB
    assert not Path("unpickled").exists()
    assert "canary" not in worker.log


@pytest.mark.parametrize("kind", KILLERS)
def test_what_a_thread_would_stumble_over_is_put_aside(
    kind: str, worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    num_letters = len(dead(redis))
    redis.lpush(QUEUE, KILLERS[kind]())
    wait_until(lambda: len(dead(redis)) > num_letters or not worker.is_alive, f"{kind} put aside")
    assert worker.is_alive
    assert client.result(client.submit(**JOB), timeout_s=20).finish_reason == "length"


@pytest.mark.parametrize("notice", [b"hello", b"[1]", b'{"job": [1], "cancel": "revoked"}', b"[" * 9999])
def test_who_publishes_what_is_no_notice_ends_no_worker(
    notice: bytes, worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    channels = Ledger().notices_to("*")
    wait_until(lambda: len(redis.pubsub_channels(channels)) == 2, "it hears its own, and that of all workers")
    for channel in redis.pubsub_channels(channels):
        assert redis.publish(channel, notice)
    result = client.result(client.submit(**JOB), timeout_s=20)
    assert result.finish_reason == "length"
    with held(worker.log_path.parent, num_tokens=1):
        job = client.submit(prompt="a", sampling=SamplingParams(max_tokens=4096))
        next(event for event in client.stream(job, timeout_s=20) if event.type == "token")
        client.cancel(job)
    assert client.result(job, timeout_s=20).finish_reason == "cancelled"
    assert worker.is_alive


@pytest.mark.parametrize("kind", WRONG_JOBS)
def test_a_job_that_no_json_should_hold_ends_with_an_error(kind: str, redis: Redis, client: Client) -> None:
    job_id = f"wrong-{uuid.uuid4()}"
    redis.lpush(QUEUE, message(body_of(WRONG_JOBS[kind]), id=job_id))
    error = client.result(job_id, timeout_s=20).error
    assert error is not None
    assert error.code == "invalid_job"


def test_of_two_fields_of_one_name_the_last_counts_for_everybody(redis: Redis, client: Client) -> None:
    job_id = f"twice-{uuid.uuid4()}"
    job = '{"prompt": "a", "sampling": {"max_tokens": 1, "max_tokens": 2}}'
    redis.lpush(QUEUE, message(body_of(job), id=job_id))
    result = client.result(job_id, timeout_s=20)
    assert result.finish_reason == "length"
    assert len(result.ids) == 2


def test_a_message_would_go_back_to_its_own_queue_whatever_its_sender_says(
    worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    job_id = f"elsewhere-{uuid.uuid4()}"
    job = {"prompt": "a", "sampling": {"max_tokens": 4096}}
    raw = json.loads(message(body_of(json.dumps(job)), id=job_id))
    raw["properties"]["delivery_info"] = {"exchange": "theirs", "routing_key": "herd:default:leases"}
    with held(worker.log_path.parent, num_tokens=1):
        redis.lpush(QUEUE, json.dumps(raw))
        next(event for event in client.stream(job_id, timeout_s=20) if event.type == "token")
        assert kombu_note(redis, job_id)[1:] == ["", QUEUE]  # where it goes if this worker dies
        assert redis.hget(Ledger().job_key(job_id), "queue") == QUEUE.encode()
        client.cancel(job_id)
    assert client.result(job_id, timeout_s=20).finish_reason == "cancelled"


def broken_record(redis: Redis, **fields: Any) -> str:
    """A job of whose record somebody has written these fields, and something into its stream."""
    job_id = f"broken-{uuid.uuid4()}"
    redis.xadd(Ledger().events_key(job_id), {"e": "no event"}, id="1-0")
    record: dict[str, Any] = {"state": "queued", "body": '{"prompt": "a"}', "queue": QUEUE, "seq": 1}
    record |= dict.fromkeys(("epoch", "n", "deaths", "attempts", "lease", "due_ms", "submitted_ms"), 0)
    redis.hset(Ledger().job_key(job_id), mapping=record | fields)
    raw = json.loads(message(body_of("{}"), id=job_id))
    raw["properties"]["delivery_tag"] = f"{job_id}:1:1"
    redis.lpush(QUEUE, json.dumps(raw))
    return job_id


@pytest.mark.parametrize(
    ("field", "value", "state"),
    [
        ("body", b"\xff", b"failed"),
        ("n", 1, b"failed"),
        ("cancel", b"\xff", b"cancelled"),
        ("v", "", b"done"),
    ],
)
def test_a_job_whose_record_or_stream_cannot_be_read_has_its_own_end_and_ends_no_worker(
    field: str, value: Any, state: bytes, worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    key = Ledger().job_key(broken_record(redis, **{field: value}))
    wait_until(lambda: redis.hget(key, "state") == state or not worker.is_alive, "its end")
    assert worker.is_alive
    assert client.result(client.submit(**JOB), timeout_s=20).finish_reason == "length"


def test_a_record_without_numbers_ends_no_worker(worker: ForkedWorker, redis: Redis, client: Client) -> None:
    job_id = broken_record(redis, n="some")
    wait_until(lambda: job_id in worker.log or not worker.is_alive, "it is claimed")
    assert client.result(client.submit(**JOB), timeout_s=20).finish_reason == "length"
    redis.delete(Ledger().job_key(job_id))
    assert worker.is_alive


def test_a_job_whose_record_breaks_while_it_runs_harms_no_other(
    worker: ForkedWorker, redis: Redis, client: Client
) -> None:
    with held(worker.log_path.parent, num_tokens=1):
        running = client.submit(prompt="a", sampling=SamplingParams(max_tokens=4096))
        next(event for event in client.stream(running, timeout_s=20) if event.type == "token")
        redis.hset(Ledger().job_key(running), mapping={"seq": "x", "n": "x", "cancel": b"\xff"})
    assert client.result(client.submit(**JOB), timeout_s=20).finish_reason == "length"
    redis.delete(Ledger().job_key(running))
    assert worker.is_alive
