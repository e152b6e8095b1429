"""Two shops with their own queues on one Redis: links of their jobs come home, and unread ones are told."""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.links import route_links
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.settings import WorkerSettings
from tests.local.forked_python import run_forked, start_forked
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(300)]

QUEUE = queue_name("m")
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 2, "ignore_eos": True}}

#: A shop that cannot be changed: it knows nothing of us, and its queue is its own.
SHOP = """
import os
from celery import Celery
name = os.environ["SHOP"]
app = Celery(name, broker=os.environ["URL"], backend=os.environ["URL"])
app.conf.task_default_queue = name

@app.task(name=name + ".keep")
def keep(*results):
    app.backend.client.rpush("kept by " + name, str(len(results)))
    return name
"""


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, tiny_settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    model = tiny_settings.model
    with WorkerProcess(server.url, model, "m", log, model_name="m", link_routes="old.*=old") as worker:
        yield worker


@contextmanager
def shop_worker(name: str, url: str, folder: Path) -> Iterator[None]:
    (folder / "shop.py").write_text(SHOP)
    log = folder / f"{name}.log"
    command = ["celery", "-A", "shop", "worker", "-P", "solo", "-l", "info", "--without-mingle", "-n", name]
    process = start_forked(
        [*command, "--without-gossip"], {**os.environ, "URL": url, "SHOP": name}, log, folder
    )
    try:
        wait_until(lambda: "ready" in log.read_text(), "the shop's worker is up", PATIENCE_S)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def shop_workers(
    worker: WorkerProcess, server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("new", "old"):
            stack.enter_context(shop_worker(name, server.url, tmp_path_factory.mktemp(name)))
        yield


def shop(name: str, url: str) -> Celery:
    """A producer of the shop."""
    app = Celery(name, broker=url, backend=url, set_as_current=False)
    app.conf.task_default_queue = name
    if name != "old":
        route_links(app)
    return app


def canvases(app: Celery) -> dict[str, Signature]:
    """By how many tasks of the shop each runs."""

    def ours(**fields: Any) -> Signature:
        return app.signature(TASK_NAME, kwargs=JOB | fields, queue=QUEUE, immutable=True, app=app)

    def keep() -> Signature:
        return app.signature(f"{app.main}.keep", app=app)

    return {
        "chain": chain(ours(), keep(), app=app),
        "group": chain(ours(), group(keep(), keep(), app=app), app=app),
        "chord": chord([ours(), ours()], keep(), app=app),
        "chord and more": chain(ours(), chord([keep(), ours()], keep(), app=app), keep(), app=app),
        "errback": ours(colour="blue").on_error(keep()),
    }


NUM_KEPT = {"chain": 1, "group": 2, "chord": 1, "chord and more": 3, "errback": 1}


@pytest.mark.parametrize("canvas", NUM_KEPT)
def test_links_of_two_shops_come_home(server: EmbeddedRedis, canvas: str) -> None:
    for name in ("new", "old"):
        canvases(shop(name, server.url))[canvas].apply_async()
    with Redis.from_url(server.url) as redis:
        for kept in ("kept by new", "kept by old"):
            wait_until(lambda kept=kept: redis.llen(kept) >= NUM_KEPT[canvas], kept)  # type: ignore[misc]
            assert redis.llen(kept) == NUM_KEPT[canvas]
            redis.delete(kept)
        assert not redis.exists("celery")
    gc.collect()  # results unsubscribe when they are freed, while Redis is there


@pytest.mark.slow
def test_links_into_a_list_that_nobody_reads_are_told_within_a_minute(
    server: EmbeddedRedis, worker: WorkerProcess, tmp_path: Path
) -> None:
    canvases(shop("closed", server.url))["chain"].apply_async()
    with Client(server.url, model="m") as client:
        wait_until(lambda: client.workers()[0].unread_list, "it is told", 60)
        assert client.workers()[0].unread_messages == 1
    wait_until(lambda: "nobody takes links from a list" in worker.log, "it is logged")
    env = {**os.environ, "HERD_REDIS_URL": server.url, "HERD_MODEL_NAME": "m"}
    for command in ("status", "doctor"):
        told = run_forked(["llama_herd", command], env, tmp_path).output
        assert 'from the list "closed"' in " ".join(told.split())
