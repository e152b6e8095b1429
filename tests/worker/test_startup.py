"""A worker is to be seen while it loads its model, which takes minutes, with how far it is."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from llama_herd.errors import ModelFileError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.worker import process, startup
from llama_herd.worker.collector import LoadingCollector
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import loading_report, start_service
from tests.cli.herd_command import invoke
from tests.local.processes import wait_until

pytestmark = pytest.mark.redis

NAME = "worker@test"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "INTERVAL_S", 0.01)
    monkeypatch.setattr(process, "device", lambda: "cpu")


def shown(url: str, tenant: str = "default") -> list[tuple[str, int]]:
    """State and percent of each worker."""
    with Client(url, tenant=tenant) as client:
        return [(worker.state, worker.loaded_percent) for worker in client.workers()]


def test_what_is_loaded_is_seen_while_the_rest_is_on_its_way(
    redis_url: str, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, seen = LoadedModel.load, list[tuple[int, str]]()

    def watched(
        settings: WorkerSettings, device: str, on_progress: Callable[[int, int], None]
    ) -> LoadedModel:
        def wait_for_report(num_done: int, num_bytes: int) -> None:
            on_progress(num_done, num_bytes)
            told = ("loading", 100 * num_done // num_bytes)
            if told[1] < 50 * (len(seen) + 1):
                return
            wait_until(lambda: shown(redis_url) == [told], f"{told} is reported")
            seen.append((told[1], invoke("status", HERD_REDIS_URL=redis_url).stdout))

        wait_until(lambda: shown(redis_url) == [("loading", 0)], "the start is reported")
        return load(settings, device, wait_for_report)

    monkeypatch.setattr(LoadedModel, "load", watched)
    service = start_service(tiny_settings.model_copy(update={"redis_url": redis_url}), NAME, WorkerHealth())
    try:
        half, whole = (percent for percent, _ in seen)
        assert 50 <= half < whole == 100
        assert f"{NAME} is loading {half}%: " in seen[0][1]
        service.note_consuming()
        wait_until(lambda: shown(redis_url) == [("ready", 100)], "it is ready")
    finally:
        service.drain(0.0, lambda: None)


def test_each_tenant_sees_it(redis: Redis, redis_url: str, tiny_settings: WorkerSettings) -> None:
    settings = tiny_settings.model_copy(update={"redis_url": redis_url, "tenants": "acme,globex"})
    with loading_report(redis, settings, NAME, WorkerHealth()) as note_bytes:
        note_bytes(1, 3)
        told = [[("loading", 33)]] * 2
        wait_until(lambda: [shown(redis_url, name) for name in ("acme", "globex")] == told, "both are told")
        found = json.loads(invoke("status", "--json", HERD_REDIS_URL=redis_url, HERD_TENANT="acme").stdout)
    assert (found["workers"][0]["state"], found["workers"][0]["loaded_percent"]) == ("loading", 33)


def test_one_that_waits_for_its_server_says_so_wherever_it_is_asked(
    redis: Redis, redis_url: str, tiny_settings: WorkerSettings
) -> None:
    health, settings = WorkerHealth(), tiny_settings.model_copy(update={"redis_url": redis_url})
    with loading_report(redis, settings, NAME, health, "away"):
        wait_until(lambda: [state for state, _ in shown(redis_url)] == ["away"], "it is told")
        (metric,) = LoadingCollector("m", health).collect()
        assert [one.labels["state"] for one in metric.samples if one.value] == ["away"]
        assert str(health.ready().reason).startswith("away: the server that computes for it")


def test_one_that_waits_for_redis_says_so_and_not_that_it_loads(tiny_settings: WorkerSettings) -> None:
    server, health = EmbeddedRedis(), WorkerHealth()
    settings = tiny_settings.model_copy(update={"redis_url": server.url})
    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(start_service, settings, NAME, health)
        try:
            wait_until(lambda: "waiting for Redis" in str(health.ready().reason), "it waits", 5)
        finally:
            with server:
                started.result(60).drain(0.0, lambda: None)
    assert health.ready().reason == "stopping: takes no more jobs"


@pytest.mark.long
def test_it_ends_with_the_block_and_passes_errors_on(redis: Redis, tiny_settings: WorkerSettings) -> None:
    with pytest.raises(ModelFileError), loading_report(redis, tiny_settings, NAME, WorkerHealth()):
        raise ModelFileError("broken")
    assert "loading report" not in {thread.name for thread in threading.enumerate()}
