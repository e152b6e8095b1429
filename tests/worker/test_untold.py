"""Celery hears how a job has ended that no worker had: its message is far behind, or nobody reads it."""

from collections.abc import Iterator
from time import time
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis import Redis

from llama_herd.errors import DeadlineExceeded
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [
    *(pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)),
    pytest.mark.filterwarnings("ignore:no worker serves"),
]


@pytest.fixture(scope="module")
def settings(server: EmbeddedRedis) -> Settings:
    return Settings(redis_url=server.url, model_name="nobody-serves-it")


@pytest.fixture(scope="module")
def app(settings: Settings) -> Celery:
    return make_app(settings)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings=settings) as client:
        yield client


def now_ms() -> int:
    return round(time() * 1000)


@pytest.mark.usefixtures("worker_of_m")
def test_of_a_job_that_is_cancelled_while_it_waits(client: Client, app: Celery, server: Any) -> None:
    job = client.submit(prompt="a tale")
    client.cancel(job)
    with pytest.raises(TaskRevokedError):
        AsyncResult(job, app=app).get(timeout=PATIENCE_S)
    with Redis.from_url(server.url) as redis:
        wait_until(lambda: redis.hget(Ledger().job_key(job), "settled") == b"1", "it is settled", PATIENCE_S)
        assert redis.zscore("herd:default:untold", job) is None


def test_of_a_job_that_runs_out_of_time_while_it_waits(
    client: Client, app: Celery, worker_of_m: WorkerProcess
) -> None:
    job = client.submit(prompt="a tale", deadline_ms=now_ms() + 500)
    with pytest.raises(DeadlineExceeded):
        AsyncResult(job, app=app).get(timeout=PATIENCE_S)
    wait_until(lambda: job in worker_of_m.log, "and its log", PATIENCE_S)


@pytest.mark.usefixtures("worker_of_m")
def test_of_a_job_that_is_cancelled_before_it_is_due(client: Client, app: Celery) -> None:
    job = client.submit(prompt="a tale", not_before=now_ms() + 3_600_000)
    client.cancel(job)
    with pytest.raises(TaskRevokedError):
        AsyncResult(job, app=app).get(timeout=PATIENCE_S)


@pytest.mark.usefixtures("worker_of_m")
def test_of_a_job_that_is_revoked_before_it_is_due(client: Client, app: Celery) -> None:
    job = client.submit(prompt="a tale", not_before=now_ms() + 3_600_000)
    AsyncResult(job, app=app).revoke()
    with pytest.raises(TaskRevokedError):
        AsyncResult(job, app=app).get(timeout=PATIENCE_S)
