"""Celery's state STARTED: stored in the round trip of a job's first event, and never over another state."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery
from redis import Redis
from redis.client import Pipeline

from llama_herd.tasks.generate import store_started
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.broker.delivery import Delivery
from tests.worker.jobs.publisher_desk import Desk

pytestmark = pytest.mark.redis


def delivery(app: Celery, job_id: str, **headers: Any) -> Delivery:
    request: Any = SimpleNamespace(id=job_id, hostname="w@test", task=app.tasks[TASK_NAME])
    return Delivery((TASK_NAME, job_id, headers, b""), request, lambda *_: None)


def test_a_job_that_starts_is_told_in_the_round_trip_of_its_first_event(
    redis: Redis, worker_app: Celery
) -> None:
    desk = Desk(redis)
    desk.start(desk.open("before"))
    desk.send()  # Redis knows the script from now on
    for job_id in ("one", "two"):
        attempt = desk.open(job_id)
        attempt.deliveries[:] = [delivery(worker_app, job_id)]
        desk.start(attempt)
    with patch.object(Pipeline, "execute", autospec=True, side_effect=Pipeline.execute) as round_trip:
        desk.send()
    assert round_trip.call_count == 1
    for job_id in ("one", "two"):
        assert worker_app.backend.get_state(job_id) == "STARTED"
        assert worker_app.backend.get_result(job_id)["hostname"] == "w@test"
        assert 0 < redis.ttl(f"celery-task-meta-{job_id}") <= worker_app.conf.result_expires
    redis.delete("celery-task-meta-two")
    desk.say(attempt, 1)
    desk.send()
    assert worker_app.backend.get_state("two") == "PENDING", "it is told once"


def test_who_wants_no_result_gets_no_state(redis: Redis, worker_app: Celery) -> None:
    desk = Desk(redis)
    attempt = desk.open("job")
    attempt.deliveries[:] = [delivery(worker_app, "job", ignore_result=True)]
    desk.start(attempt)
    desk.send()
    assert [event.type for event in desk.events("job")] == ["started"]
    assert worker_app.backend.get_state("job") == "PENDING"


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_a_state_that_is_there_stays(redis: Redis, worker_app: Celery, state: str) -> None:
    error = ValueError("no")
    worker_app.backend.store_result("job", error if state != "SUCCESS" else {}, state)
    run_call(redis, store_started("job", "w@test", worker_app.backend))
    assert worker_app.backend.get_state("job") == state


def test_an_end_takes_the_place_of_the_start(redis: Redis, worker_app: Celery) -> None:
    run_call(redis, store_started("job", "w@test", worker_app.backend))
    worker_app.backend.store_result("job", {"text": "a tale"}, "SUCCESS")
    assert worker_app.AsyncResult("job").get(timeout=1) == {"text": "a tale"}


def test_a_state_that_redis_refuses_is_the_only_loss(
    redis: Redis, redis_url: str, worker_app: Celery
) -> None:
    keys = ["herd:*"]
    redis.acl_setuser("narrow", enabled=True, nopass=True, keys=keys, commands=["+@all"], channels=["*"])
    desk = Desk(redis, Redis.from_url(redis_url, username="narrow", password="any"))
    attempt = desk.open("job")
    attempt.deliveries[:] = [delivery(worker_app, "job")]
    desk.start(attempt)
    desk.say(attempt, 1, end="stop")
    desk.send()
    redis.acl_deluser("narrow")
    assert desk.ended == ["job"]
    assert worker_app.backend.get_state("job") == "PENDING"
