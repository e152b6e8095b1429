"""A batch whose storage does not come back ends, and gives back its rows."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.feeder import batch_feeder, storage_chores
from llama_herd.tasks.ledger.stored_files import STORAGES
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_chores, "SEEN_S", 0.1)
    monkeypatch.setattr(storage_chores, "GRACE_S", 0.5)
    monkeypatch.setattr(batch_feeder, "REST_S", 0.1)
    monkeypatch.setattr(batch_feeder, "LOOK_S", 0.1)


@pytest.fixture
def worker(redis: Redis, redis_url: str) -> Iterator[StandIn]:
    """It answers nothing."""
    with StandIn(redis_url) as worker:
        worker.hold()
        yield worker


def lose(redis: Redis, storage: str) -> None:
    """Let a storage be one that was seen for the last time long ago."""
    redis.zadd(STORAGES, {storage: 1}, xx=True)


def begin(gateway: GatewayThread, redis: Redis, client: Client) -> str:
    batch_id = BatchApi(lambda: gateway.url).begin(rows(20))
    wait_until(lambda: redis.zscore(STORAGES, gateway.context.storage.id), "its storage is seen")
    wait_until(lambda: client.status().pending, "its rows are under way")
    return batch_id


def test_a_batch_whose_storage_is_lost_ends_and_gives_back_its_rows(
    worker: StandIn, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with Client(redis_url) as client:
        with GatewayThread(redis_url, files=str(tmp_path / "one")) as first:
            batch_id = begin(first, redis, client)
            storage = first.context.storage.id
        with GatewayThread(redis_url, files=str(tmp_path / "two")) as second:
            api = BatchApi(lambda: second.url)
            assert api.show(batch_id)["status"] == "in_progress"
            lose(redis, storage)
            batch = api.end_of(batch_id)
        assert not client.status().pending
        with GatewayThread(redis_url, files=str(tmp_path / "one")):
            wait_until(lambda: not redis.keys("herd:batches@*"), "its parts are deleted where it came back")
    (error,) = batch["errors"]["data"]
    assert (batch["status"], error["code"]) == ("failed", "storage_lost")
    assert "HERD_GATEWAY_STORAGE_LOST_S" in error["message"]
    assert not redis.hexists("herd:default:quota", "rows")


def test_a_gateway_without_batches_writes_nothing(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with GatewayThread(redis_url, files=str(tmp_path)) as gateway:
        file_id = BatchApi(lambda: gateway.url).upload(b"{}\n").json["id"]
        assert BatchApi(lambda: gateway.url).ask("DELETE", f"/v1/files/{file_id}").status == 200
        redis.config_resetstat()
        wait_until(
            lambda: redis.info("commandstats").get("cmdstat_zcard", {}).get("calls", 0) > 2, "it has looked"
        )
        assert not redis.exists(STORAGES)


def test_its_own_gateway_ends_it_when_its_folder_is_gone(
    worker: StandIn, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with GatewayThread(redis_url, files=str(tmp_path / "one")) as gateway, Client(redis_url) as client:
        batch_id = begin(gateway, redis, client)
        shutil.move(tmp_path / "one", tmp_path / "away")
        lose(redis, gateway.context.storage.id)
        worker.go_on()  # until then it touches no file
        batch = BatchApi(lambda: gateway.url).end_of(batch_id)
    assert batch["errors"]["data"][0]["code"] == "storage_lost"


def test_a_storage_that_a_gateway_reaches_is_not_lost(
    worker: StandIn, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with (
        GatewayThread(redis_url, files=str(tmp_path / "one")) as first,
        GatewayThread(redis_url, files=str(tmp_path / "two")) as second,
        Client(redis_url) as client,
    ):
        batch_id, _ = (begin(gateway, redis, client) for gateway in (first, second))
        storages = {gateway.context.storage.id.encode() for gateway in (first, second)}
        for _ in range(5):
            for storage in storages:
                lose(redis, storage.decode())
            wait_until(lambda: redis.zcount(STORAGES, 2, "+inf") == 2, "both are seen again")
        worker.go_on()
        assert BatchApi(lambda: first.url).end_of(batch_id)["status"] == "completed"


def test_a_lost_storage_is_left_alone_for_a_while(
    worker: StandIn, redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of all gateways the first that is back must not end the batches of the others."""
    monkeypatch.setattr(storage_chores, "GRACE_S", 3600.0)
    with Client(redis_url) as client:
        with GatewayThread(redis_url, files=str(tmp_path / "one")) as first:
            batch_id = begin(first, redis, client)
            storage = first.context.storage.id
        lose(redis, storage)
        with GatewayThread(redis_url, files=str(tmp_path / "two")) as second:
            begin(second, redis, client)
            for _ in range(5):
                lose(redis, second.context.storage.id)
                wait_until(lambda: redis.zcount(STORAGES, 2, "+inf") == 1, "it has looked again")
            assert BatchApi(lambda: second.url).show(batch_id)["status"] == "in_progress"
