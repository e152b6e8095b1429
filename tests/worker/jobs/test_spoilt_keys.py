"""Keys of jobs where somebody has put something else: those jobs are answered, their mates go on."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.local.processes import ForkedWorker

pytestmark = [pytest.mark.redis, pytest.mark.worker]

JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 3, "ignore_eos": True}}
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, tiny_settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkedWorker]:
    settings = tiny_settings.model_copy(update={"redis_url": server.url})
    with ForkedWorker(settings, "spoilt@test", tmp_path_factory.mktemp("log") / "log") as worker:
        yield worker


@pytest.fixture
def app(worker: ForkedWorker) -> Iterator[Celery]:
    with make_app(Settings(redis_url=worker.settings.redis_url)) as app:
        yield app


@pytest.mark.parametrize("part", ["job", "events"])
def test_a_bare_message_whose_key_is_something_else_fails_with_a_result(
    worker: ForkedWorker, app: Celery, part: str
) -> None:
    job_id = f"spoilt-{part}"
    ledger = Ledger()
    key = ledger.job_key(job_id) if part == "job" else ledger.events_key(job_id)
    redis_url = worker.settings.redis_url
    with Redis.from_url(redis_url) as redis, Client(redis_url, model="tiny") as client:
        redis.set(key, "somebody else's")
        sent = app.send_task("herd.generate", kwargs=JOB, queue="herd.tiny", task_id=job_id)
        assert client.result(client.submit(**JOB), timeout_s=TIMEOUT_S).finish_reason == "length"
        with pytest.raises(Exception, match="WRONGTYPE"):
            sent.get(timeout=TIMEOUT_S)
        wait_until(lambda: not redis.hlen(ledger.unacked_key), "both messages acknowledged")
        assert run_call(redis, ledger.num_running()) == 0
    assert worker.is_alive


def test_an_expired_message_whose_result_is_refused_ends_no_worker(worker: ForkedWorker, app: Celery) -> None:
    """Celery stores by itself, in the loop that takes messages, that a task of others has expired."""
    job_id, redis_url = "late", worker.settings.redis_url
    with Redis.from_url(redis_url) as redis, Client(redis_url, model="tiny") as client:
        redis.sadd(Ledger().result_key(job_id), "no result")
        app.send_task("their.task", kwargs=JOB, queue="herd.tiny", task_id=job_id, expires=-1)
        assert client.result(client.submit(**JOB), timeout_s=TIMEOUT_S).finish_reason == "length"
        wait_until(lambda: not redis.hlen(Ledger().unacked_key), "both messages acknowledged")
        assert run_call(redis, DeadLetters().letters(10))[0].reason
    assert worker.is_alive
