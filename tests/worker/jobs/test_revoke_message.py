"""What Celery's clients send by remote control: of all commands a worker reads one."""

import json
import pickle
from base64 import b64encode
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis

from llama_herd.worker.jobs.revoker import RevokeMessage, read_revoke

CHANNEL = "/0.celery.pidbox"


def sent(redis_url: str, redis: Redis, command: str, *args: Any, **options: Any) -> bytes:
    """What a Celery client publishes."""
    app = Celery(broker=redis_url, set_as_current=False)
    with redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(CHANNEL)
        getattr(app.control, command)(*args, **options)
        while (message := pubsub.get_message(timeout=1)) is None:
            pass
    return bytes(message["data"])


def framed(body: object, content_type: str = "application/json") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.dumps({"body": b64encode(raw).decode(), "content-type": content_type}).encode()


@pytest.mark.redis
def test_a_clients_revoke_is_read(redis_url: str, redis: Redis) -> None:
    message = read_revoke(sent(redis_url, redis, "revoke", ["a", "b", "a"], terminate=True))
    assert message is not None
    assert message.job_ids == ["a", "b"]
    assert message.is_for("w@test")
    assert message.reply("celery", "w@test") is None


@pytest.mark.redis
def test_a_revoke_for_another_worker_is_not_for_this_one(redis_url: str, redis: Redis) -> None:
    message = read_revoke(sent(redis_url, redis, "terminate", "a", destination=["other@test"]))
    assert message is not None
    assert not message.is_for("w@test")
    assert message.is_for("other@test")


@pytest.mark.redis
@pytest.mark.parametrize("command", ["shutdown", "ping", "pool_restart", "heartbeat"])
def test_another_command_is_not_read(redis_url: str, redis: Redis, command: str) -> None:
    assert read_revoke(sent(redis_url, redis, "broadcast", command)) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"body": "e30=", "content-type": "application/json"}',
        b'{"body": 7, "content-type": "application/json"}',
        framed(b"[" * 100_000),
        framed({"method": "revoke", "arguments": {}}),
        framed({"method": "revoke", "arguments": {"task_id": [1]}}),
        framed({"method": "revoke", "arguments": {"task_id": {"a": 1}}}),
        framed({"method": "revoke", "arguments": {"task_id": "a"}, "destination": "w@test"}),
        framed({"method": "revoke", "arguments": {"task_id": "a"}, "reply_to": {"routing_key": "herd.m"}}),
        framed(pickle.dumps({"method": "revoke"}), "application/x-python-serialize"),
    ],
)
def test_what_is_no_revoke_is_not_read(raw: bytes) -> None:
    assert read_revoke(raw) is None


def test_ids_that_name_no_job_are_left_out() -> None:
    message = read_revoke(framed({"method": "revoke", "arguments": {"task_id": ["x}y", "", "a", "b" * 129]}}))
    assert message is not None
    assert message.job_ids == ["a"]


def test_an_answer_goes_where_celery_waits_for_it_and_nowhere_else() -> None:
    """The exchange in the message is its sender's claim."""
    place = {"exchange": "", "routing_key": str(uuid4())}
    message = RevokeMessage.model_validate(
        {"method": "revoke", "arguments": {"task_id": "a"}, "reply_to": place, "ticket": "t"}
    )
    answer = message.reply("celery", "w@test")
    assert answer is not None
    assert answer[0] == f"{place['routing_key']}.reply.celery.pidbox"
