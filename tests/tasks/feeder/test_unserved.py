"""Rows of a model that nobody serves hold up no others, and the batch says what it waits for."""

from collections.abc import Iterator

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.batch import parked_rows, window
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.feeder import batch_feeder
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


@pytest.fixture
def api(redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchApi]:
    """A gateway that runs two batches at a time."""
    monkeypatch.setattr(batch_feeder, "LOOK_S", 0.1)
    monkeypatch.setattr(batch_feeder, "STALLED_REST_S", 0.5)
    with GatewayThread(redis_url, batches=2) as gateway:
        yield BatchApi(lambda: gateway.url)


def begin(api: BatchApi, num: int, *models: str) -> str:
    """A batch with so many rows for each of these models, one model after the other."""
    lines = [line for model in models for line in rows(num, model=model)]
    return api.begin({**line, "custom_id": str(number)} for number, line in enumerate(lines))


def test_batches_that_nobody_serves_hold_up_no_other(api: BatchApi, redis_url: str) -> None:
    lost = [begin(api, 5, "mistyped") for _ in range(5)]
    wait_until(lambda: api.show(lost[0])["unserved"] == ["mistyped"], "it says so")
    with StandIn(redis_url):
        for _ in range(3):
            good = api.end_of(begin(api, 5, "tales"))
            assert (good["status"], good["unserved"]) == ("completed", [])
    for one in lost:
        assert api.show(one)["status"] in ("validating", "in_progress")
    with StandIn(redis_url, "mistyped"):
        assert [api.end_of(one)["request_counts"]["completed"] for one in lost] == [5] * 5


def test_a_batch_that_waits_for_a_worker_can_be_cancelled(api: BatchApi, redis_url: str) -> None:
    lost = [begin(api, 40, "mistyped") for _ in range(3)]
    for one in lost:
        assert api.cancel(one).status == 200
    for one in lost:
        assert api.end_of(one)["status"] == "cancelled"


def test_rows_that_nobody_serves_hold_up_no_row_behind_them(
    api: BatchApi, redis: Redis, redis_url: str
) -> None:
    """A few of them are in the queue, so that it shows what is due; the others wait in the gateway."""
    with StandIn(redis_url), Client(redis_url) as client:
        mixed = begin(api, 300, "mistyped", "tales")
        wait_until(lambda: api.show(mixed)["request_counts"]["completed"] == 300, "the rows behind are done")
        assert api.show(mixed)["unserved"] == ["mistyped"]
        assert client.status().pending == window.MIN_WINDOW
        (told,) = client.batches()
        assert told.unserved == "mistyped"
        with StandIn(redis_url, "mistyped"):
            ended = api.end_of(mixed)
    assert ended["request_counts"] == {"total": 600, "completed": 600, "failed": 0}


def test_a_batch_of_the_client_runs_what_is_served(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "COUNT_WORKERS_S", 0.1)
    jobs = [{"prompt": "x", "model": model} for model in ["mistyped"] * 100 + ["tales"] * 100]
    with StandIn(redis_url), Client(redis_url) as client:
        batch = client.batch(jobs)
        first = [next(batch).index for _ in range(100)]
        assert sorted(first) == [*range(100, 200)]
        assert batch.window.is_stalled
        with StandIn(redis_url, "mistyped"):
            assert sorted(item.index for item in batch) == [*range(100)]


def test_more_than_may_be_parked_is_read_later(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "COUNT_WORKERS_S", 0.1)
    monkeypatch.setattr(parked_rows, "MAX_PARKED", 10)
    jobs = [{"prompt": "x", "model": model} for model in ["mistyped"] * 100 + ["tales"] * 5]
    with StandIn(redis_url), Client(redis_url) as client:
        batch = client.batch(jobs)
        wait_until(lambda: batch.poll() or batch.window.without_worker, "workers are counted")
        assert batch.poll() == []
        assert len(batch.window._parked) == 10
        with StandIn(redis_url, "mistyped"):
            assert len(list(batch)) == 105
