"""What Celery stores and sends once it is told how a job has ended."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import pytest
from celery import Celery, group, signature
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.broken_connections import LARGE_BYTES
from llama_herd.tasks.generate import run_tracer
from llama_herd.tasks.protocol.events import End, Token
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.result_backend import NO_VALUE, settling
from tests.chaos.harness.patience import wait_until
from tests.redis_errors import num_errors
from tests.worker.jobs.celery_app import app_of_worker

pytestmark = pytest.mark.redis

#: Refusals after which Celery by itself would have given a link up.
MANY = 20


def ended_well(job_id: str = "job", text: str = "") -> Result:
    tokens = [Token(seq=1, job=job_id, epoch=1, i=0, ids=(1,), text=text)] if text else []
    last = End(seq=len(tokens) + 1, job=job_id, epoch=1, finish_reason="length", n=len(tokens), attempts=1)
    return Result.from_events([*tokens, last])


def traced(app: Celery, outcome: Result, **embed: Any) -> None:
    """Let Celery's tracer tell how a job ended."""
    request = {"id": outcome.job, "delivery_info": {}}
    run_tracer(app.tasks[TASK_NAME], request, embed, outcome)


@contextmanager
def full(redis: Redis) -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


@pytest.mark.parametrize("num_bytes", [10, LARGE_BYTES])
def test_a_full_redis_takes_the_result_of_a_job_that_has_ended(
    worker_app: Celery, redis: Redis, num_bytes: int
) -> None:
    with full(redis):
        traced(worker_app, ended_well(text="x" * num_bytes))
    assert worker_app.backend.get_result("job")["text"] == "x" * num_bytes


def test_a_full_redis_takes_links_of_it(worker_app: Celery, redis: Redis) -> None:
    links = {"callbacks": [worker_app.signature("then", queue="next")]}
    with full(redis):
        traced(worker_app, ended_well(), **links)
    assert worker_app.backend.get_state("job") == "SUCCESS"
    assert redis.llen("next") == 1


def test_a_result_that_redis_refuses_is_offered_until_it_takes_it(redis_url: str, redis: Redis) -> None:
    app = app_of_worker(redis_url)
    storing = Thread(target=app.backend.store_result, args=("job", {"text": "a tale"}, "SUCCESS"))
    redis.config_set("min-replicas-to-write", 1)
    try:
        storing.start()
        wait_until(lambda: num_errors(redis, "NOREPLICAS"), "a result refused")
    finally:
        redis.config_set("min-replicas-to-write", 0)
    storing.join()
    assert app.backend.get_state("job") == "SUCCESS"


@pytest.mark.long
def test_a_redis_that_goes_before_a_result_is_stored_makes_no_failure_of_it() -> None:
    """Celery looks first whether there is a result already."""
    with EmbeddedRedis(appendonly=True) as server:
        app = app_of_worker(server.url)
        assert app.backend.get_state("job") == "PENDING"
        server.stop()
        telling = Thread(target=traced, args=(app, ended_well()))
        with capture_logs() as lines:
            telling.start()
            wait_until(lambda: lines, "the result is not taken")
        server.start()
        telling.join()
        assert app.backend.get_state("job") == "SUCCESS"


@pytest.mark.slow  # Celery pauses a second between two tries
def test_a_link_that_redis_refuses_is_offered_until_it_takes_it(worker_app: Celery, redis: Redis) -> None:
    links = {"callbacks": [worker_app.signature("then", queue="next")]}
    telling = Thread(target=traced, args=(worker_app, ended_well()), kwargs=links)
    redis.config_resetstat()
    redis.config_set("min-replicas-to-write", 1)
    try:
        telling.start()
        wait_until(lambda: num_errors(redis, "NOREPLICAS") > MANY, "a link refused again and again")
    finally:
        redis.config_set("min-replicas-to-write", 0)
    telling.join()
    assert worker_app.backend.get_state("job") == "SUCCESS"
    assert redis.llen("next") == 1


@pytest.mark.parametrize("num", [1, 3])
def test_nobody_listens_for_the_results_of_links_that_were_sent(
    worker_app: Celery, redis: Redis, num: int
) -> None:
    """Redis would keep for the worker what it answers to that, since nobody reads it."""
    redis.config_resetstat()
    with settling("job", None):
        traced(worker_app, ended_well(), callbacks=[worker_app.signature("then", queue="next")] * num)
    assert redis.llen("next") == num
    assert "cmdstat_subscribe" not in redis.info("commandstats")


@pytest.mark.parametrize(
    ("text", "chord", "is_left"), [("", None, True), ("x" * LARGE_BYTES, None, False), ("", "then", False)]
)
def test_a_result_is_left_to_who_settles_its_job_unless_it_is_large_or_a_chord_needs_it(
    worker_app: Celery, text: str, chord: str | None, is_left: bool
) -> None:
    body = chord and worker_app.signature(chord, queue="next")
    with settling("job", 60) as now:
        traced(worker_app, ended_well(text=text), chord=body)
    assert worker_app.backend.get_state("job") == ("PENDING" if is_left else "SUCCESS")
    assert bool(now.result.value) == is_left


def test_a_link_into_a_key_that_is_no_queue_fails_the_task_at_once(worker_app: Celery, redis: Redis) -> None:
    redis.set("next", "somebody else's")
    traced(worker_app, ended_well(), callbacks=[worker_app.signature("then", queue="next")])
    assert worker_app.backend.get_state("job") == "FAILURE"
    assert "WRONGTYPE" in str(worker_app.backend.get_result("job"))


MIB = 1024 * 1024


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "num_chars", "state"),
    [
        (MIB, MIB // 2, "SUCCESS"),
        (MIB, 2 * MIB, "FAILURE"),
        (8 * MIB, 2 * MIB, "SUCCESS"),
        (8 * MIB, 9 * MIB, "FAILURE"),
        (512 * MIB, 9 * MIB, "SUCCESS"),
    ],
)
def test_a_result_that_is_too_large_for_redis_is_a_failure_that_names_both_numbers(
    worker_app: Celery, redis: Redis, limit: int, num_chars: int, state: str
) -> None:
    redis.config_set("proto-max-bulk-len", limit)
    try:
        traced(worker_app, ended_well(text="x" * num_chars))
    finally:
        redis.config_set("proto-max-bulk-len", 512 * MIB)
    assert worker_app.backend.get_state("job") == state
    if state == "FAILURE":
        told = str(worker_app.backend.get_result("job"))
        assert f"proto-max-bulk-len of {limit:,} bytes" in told
        assert f"{num_chars:,}"[:2] in told
        assert "xxx" not in told


@pytest.mark.long
def test_a_link_that_is_too_large_for_redis_fails_the_task(worker_app: Celery, redis: Redis) -> None:
    """A link carries the result, and as base64."""
    redis.config_set("proto-max-bulk-len", MIB)
    links = [worker_app.signature("then", queue="next")]
    try:
        traced(worker_app, ended_well(text="x" * (MIB - 10_000)), callbacks=links)
    finally:
        redis.config_set("proto-max-bulk-len", 512 * MIB)
    assert worker_app.backend.get_state("job") == "FAILURE"
    assert "proto-max-bulk-len" in str(worker_app.backend.get_result("job"))
    assert not redis.exists("next")


def test_a_part_of_a_chord_that_redis_refuses_is_raised_without_its_text(worker_app: Celery) -> None:
    chord = worker_app.signature("then", queue="next")
    request = {"id": "job", "delivery_info": {}, "group": "g", "group_index": "x"}
    outcome = ended_well(text="a secret")
    with pytest.raises(GenerationError, match="not a valid float") as caught:
        run_tracer(worker_app.tasks[TASK_NAME], request, {"chord": chord}, outcome)
    assert "secret" not in str(caught.value)
    assert worker_app.backend.get_state("job") == "SUCCESS"


@pytest.mark.parametrize(
    "links", [{"errbacks": "abc"}, {"callbacks": {"task": "then"}}, {"chain": [1]}, {"chord": ["then"]}]
)
def test_links_in_a_form_that_is_not_celerys_send_nothing(
    worker_app: Celery, redis: Redis, links: dict[str, Any]
) -> None:
    """Each letter of a text would be taken for a task, a million of them in a message of a megabyte."""
    with pytest.raises(GenerationError, match=next(iter(links))):
        traced(worker_app, ended_well(), **links)
    assert redis.keys() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"args": None},
        {"kwargs": ["a secret"]},
        {"options": 5},
        {"options": {"queue": 5}},
        {"options": {"countdown": 1e300}},
        {"subtask_type": "a secret"},
        {"subtask_type": "chain", "kwargs": {"tasks": 3}},
    ],
)
@pytest.mark.parametrize("name", ["callbacks", "chain"])
def test_a_link_that_celery_cannot_send_is_told_in_our_words(
    worker_app: Celery, redis: Redis, name: str, wrong: dict[str, Any]
) -> None:
    with settling("job", 60) as now, suppress(Exception):
        traced(worker_app, ended_well(), **{name: [dict(signature("then", queue="next")) | wrong]})
    assert now.result == NO_VALUE
    assert redis.llen("next") == 0
    error = worker_app.backend.get_result("job")
    assert isinstance(error, GenerationError)
    assert error.code == "refused"
    assert "secret" not in str(error)


def linked(name: str, num: int) -> dict[str, Any]:
    several = group([signature("then", queue="next")] * (num - 1))
    kinds: dict[str, dict[str, Any]] = {
        "names": {"callbacks": ["then"] * num},
        "errbacks": {"errbacks": [dict(signature("then"))] * num},
        "group": {"callbacks": [several]},
        "chain": {"chain": [signature("then"), several]},
    }
    return kinds[name]


@pytest.mark.parametrize("name", ["names", "errbacks", "group", "chain"])
def test_more_links_than_a_worker_may_send_send_nothing(worker_app: Celery, redis: Redis, name: str) -> None:
    """A message has room for thirty thousand, each of which is a message to send."""
    with pytest.raises(GenerationError, match="links 1,001 tasks, and 1,000 are allowed"):
        traced(worker_app, ended_well(), **linked(name, 1001))
    assert redis.keys() == []


def test_of_a_long_chain_the_first_is_sent(worker_app: Celery, redis: Redis) -> None:
    traced(worker_app, ended_well(), chain=[worker_app.signature("then", queue="next")] * 1001)
    assert redis.llen("next") == 1
