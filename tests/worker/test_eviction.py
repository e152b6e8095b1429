"""A Redis that is told to evict keys while a worker runs: it is seen and said, and no damaged job hangs."""

from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, RecordUnreadable
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.faults.standstill import frozen
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import invoke
from tests.local.processes import ForkedWorker, standstill

pytestmark = [pytest.mark.redis, pytest.mark.worker]


@pytest.fixture(scope="module")
def settings(endless_settings: WorkerSettings) -> Iterator[WorkerSettings]:
    with EmbeddedRedis() as server:
        yield endless_settings.model_copy(update={"redis_url": server.url, "model_name": "m"})


@pytest.fixture(scope="module")
def worker(settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedWorker]:
    folder = tmp_path_factory.mktemp("log")
    with ForkedWorker(settings, "one@test", folder / "log", **standstill(folder, step_s=0.02)) as worker:
        yield worker


@pytest.fixture
def redis(settings: WorkerSettings) -> Iterator[Redis]:
    with Redis.from_url(settings.redis_url) as redis:
        yield redis


@pytest.fixture
def client(settings: WorkerSettings, worker: ForkedWorker) -> Iterator[Client]:
    with Client(settings=settings) as client:
        yield client


def test_eviction_is_seen_while_a_worker_runs_and_herd_status_names_the_fix(
    client: Client, redis: Redis, settings: WorkerSettings
) -> None:
    redis.config_set("maxmemory", 1 << 30)
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        wait_until(lambda: client.workers()[0].evicts == "allkeys-lru", "it is seen")
        shown = " ".join(invoke("status", HERD_REDIS_URL=settings.redis_url).stdout.split())
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 0)
    assert "Redis drops accepted jobs" in shown
    assert "Fix: redis-cli CONFIG SET maxmemory-policy noeviction" in shown
    wait_until(lambda: client.workers()[0].evicts == "", "it is taken back")


def fails_unreadable(client: Client, settings: WorkerSettings, job_id: str) -> None:
    """Celery is told, too."""
    with make_app(settings) as app, pytest.raises(GenerationError) as failed:
        app.AsyncResult(job_id).get(timeout=30)
    assert failed.value.code == ErrorCode.UNREADABLE
    assert client.job(job_id).state == "failed"


@pytest.mark.parametrize("part", ["record", "events"])
def test_a_running_job_that_loses_a_part_ends_as_unreadable(
    client: Client, redis: Redis, settings: WorkerSettings, part: str
) -> None:
    ledger = client._core.ledger
    job_id = client.submit(prompt="a", sampling={"max_tokens": 4096})
    wait_until(lambda: client.job(job_id).tokens > 3, "it has tokens")
    assert redis.delete(ledger.job_key(job_id) if part == "record" else ledger.events_key(job_id)) == 1
    fails_unreadable(client, settings, job_id)
    if part == "record":
        result = client.result(job_id)
        assert result.error is not None
        assert result.error.code == ErrorCode.UNREADABLE
        assert result.text  # what was written stays
    else:
        with pytest.raises(RecordUnreadable, match="lacks the event after 0"):
            client.result(job_id)


def test_a_waiting_job_without_a_record_ends_as_unreadable(
    client: Client, worker: ForkedWorker, redis: Redis, settings: WorkerSettings
) -> None:
    with frozen([worker]):
        job_id = client.submit(prompt="a")
        assert redis.delete(client._core.ledger.job_key(job_id)) == 1
    fails_unreadable(client, settings, job_id)
    result = client.result(job_id)
    assert result.error is not None
    assert result.error.code == ErrorCode.UNREADABLE
