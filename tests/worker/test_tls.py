"""Redis over TLS: client, worker, queue and results; and whom they refuse to talk to."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import ForkedWorker
from tests.tls import Identity, TlsFront, needs_openssl

pytestmark = [pytest.mark.redis, needs_openssl]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def here(folder: Path) -> Identity:
    return Identity.make(folder, "127.0.0.1")


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Identity:
    return Identity.make(folder, "elsewhere.example")


@pytest.fixture
def front(redis_url: str, redis_server: EmbeddedRedis, here: Identity) -> Iterator[TlsFront]:
    with TlsFront(redis_server.port, here) as front:
        yield front


def client(front: TlsFront, ca: Identity | None, **more: str) -> AbstractContextManager[Client]:
    trusted = {} if ca is None else {"redis_ca_file": str(ca.file)}
    return Client(settings=Settings.read(redis_url=front.url, **trusted, **more))


def test_a_server_with_a_trusted_certificate_is_talked_to(front: TlsFront, here: Identity) -> None:
    with client(front, here) as trusting:
        assert trusting.workers() == []


@pytest.mark.long
def test_a_server_that_nobody_vouches_for_is_not_talked_to(front: TlsFront, elsewhere: Identity) -> None:
    for ca in (None, elsewhere):
        with client(front, ca) as wary, pytest.raises(RedisUnavailable):
            wary.workers()


@pytest.mark.long
def test_a_server_with_the_certificate_of_another_host_is_not_talked_to(
    redis_url: str, redis_server: EmbeddedRedis, elsewhere: Identity
) -> None:
    with (
        TlsFront(redis_server.port, elsewhere) as front,
        client(front, elsewhere) as wary,
        pytest.raises(RedisUnavailable),
    ):
        wary.workers()


@pytest.mark.long
def test_a_server_that_wants_to_know_us_is_shown_our_certificate(
    redis_url: str, redis_server: EmbeddedRedis, here: Identity, elsewhere: Identity
) -> None:
    with TlsFront(redis_server.port, here, client=elsewhere) as front:
        with client(front, here, redis_cert_file=str(elsewhere.file)) as known:
            assert known.workers() == []
        with client(front, here) as unknown, pytest.raises(RedisUnavailable):
            unknown.workers()


@pytest.mark.worker
def test_queue_worker_and_results_go_over_tls(
    front: TlsFront, here: Identity, tiny_path: Path, tmp_path: Path
) -> None:
    settings = WorkerSettings.read(
        redis_url=front.url, redis_ca_file=str(here.file), model_name="m", model=tiny_path, threads=1
    )
    job: dict[str, Any] = {"prompt": "Once", "sampling": {"max_tokens": 3, "ignore_eos": True}}
    with (
        Client(settings=settings) as client,
        ForkedWorker(settings, "tls@test", tmp_path / "log"),
    ):
        assert client.result(client.submit(**job), timeout_s=30).finish_reason == "length"
        with make_app(settings) as app:
            sent = app.send_task(TASK_NAME, kwargs=job, queue="herd.m")
            assert sent.get(timeout=30)["finish_reason"] == "length"
