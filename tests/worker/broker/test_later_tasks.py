"""A shop's own tasks with an ETA that keep jobs out are told of: nothing runs then, and nothing is broken."""

from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import celery
import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis, free_port
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings
from tests.cli.herd_command import invoke
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.long]

INCLUDE = "tests.worker.broker.side_tasks"
TOLD = "side@test holds {num:,} Celery tasks with an ETA in the place of jobs. Fix: send such"


def send_for_later(url: str, tenant: str, num: int) -> None:
    app = make_app(Settings(redis_url=url, tenant=tenant))
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for _ in range(num):
            app.send_task(
                "side.told_id", ["x"], queue=queue_name("m", tenant), countdown=3600, producer=producer
            )


def status_of(client: Client) -> WorkerStatus:
    (worker,) = client.workers()
    return worker


@pytest.fixture
def start(server: EmbeddedRedis, tmp_path: Path) -> Callable[..., WorkerProcess]:
    model = write_tiny_gguf(tmp_path / "m.gguf")

    def start(tenants: str, metrics_port: int = 0) -> WorkerProcess:
        return WorkerProcess(
            server.url,
            model,
            "side",
            tmp_path / "log",
            include=INCLUDE,
            model_name="m",
            slots=1,
            tenants=tenants,
            metrics_port=metrics_port,
        )

    return start


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="Celery 5.5 holds any number of messages for later")
def test_tasks_that_take_all_places_of_jobs_are_told_of(
    start: Callable[..., WorkerProcess], server: EmbeddedRedis
) -> None:
    port = free_port()
    with start("", port) as worker, Client(server.url, model="m") as client:
        send_for_later(server.url, "default", 1000)
        wait_until(lambda: client.status().depth == 0, "it holds as many as it may", PATIENCE_S)
        assert client.result(client.submit(prompt="x"), timeout_s=PATIENCE_S).text
        assert status_of(client).complaints == ()
        assert "ETA" not in worker.log
        send_for_later(server.url, "default", 20)
        told = TOLD.format(num=1009)
        wait_until(lambda: told in "".join(status_of(client).complaints), "it says so", PATIENCE_S)
        assert status_of(client).num_free == 0
        assert (
            b'herd_later_tasks{model_name="m"} 1009.0' in urlopen(f"http://127.0.0.1:{port}/metrics").read()
        )
        assert client.job(client.submit(prompt="x")).state == "queued"
        assert worker.log.count("tasks with an ETA take the places of jobs") == 1
        shown = invoke("status", HERD_REDIS_URL=server.url).stdout
        assert told in " ".join(shown.split())


def test_a_tenant_whose_tasks_take_its_places_is_told_of_it_alone(
    start: Callable[..., WorkerProcess], server: EmbeddedRedis
) -> None:
    with (
        start("acme,globex"),
        Client(server.url, tenant="acme", model="m") as acme,
        Client(server.url, tenant="globex", model="m") as globex,
    ):
        send_for_later(server.url, "acme", 770)
        told = TOLD.format(num=750)
        wait_until(lambda: told in "".join(status_of(acme).complaints), "it says so", PATIENCE_S)
        assert acme.job(acme.submit(prompt="x")).state == "queued"
        assert globex.result(globex.submit(prompt="x"), timeout_s=PATIENCE_S).text
        assert status_of(globex).complaints == ()
        with Redis.from_url(server.url) as redis:
            assert redis.llen(queue_name("m", "acme")) == 21
