"""The end of a job on Celery's side, in a real worker: one message's trouble is nobody else's."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 9}}
QUEUE = queue_name("m")


@pytest.fixture
def root(server: EmbeddedRedis) -> Iterator[Any]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.fixture(scope="module")
def app(server: EmbeddedRedis) -> Celery:
    return make_app(Settings(redis_url=server.url))


def test_parts_of_a_chord_that_redis_refuses_hold_nobody_up(
    worker_of_m: WorkerProcess, app: Celery, root: Any
) -> None:
    """As many as there are threads that store results, and one more."""
    chord = app.signature("then", queue="next")
    options = {"group_id": "g", "group_index": "x", "chord": chord}
    bad = [app.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, **options) for _ in range(3)]
    good = app.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE)
    for sent in (*bad, good):
        assert sent.get(timeout=PATIENCE_S)["finish_reason"] in ("length", "stop")
    wait_until(lambda: num_held(root) == 0, "every message is acked", PATIENCE_S)
    assert {app.backend.get_task_meta(sent.id, cache=False)["status"] for sent in (*bad, good)} == {"SUCCESS"}
    assert "not a valid float" in worker_of_m.log
    assert "Traceback" not in worker_of_m.log


def test_results_that_cannot_be_stored_hold_nobody_up(
    worker_of_m: WorkerProcess, app: Celery, root: Any
) -> None:
    names = [f"taken-{number}-{worker_of_m.process.pid}" for number in range(3)]
    for name in names:
        root.lpush(Ledger().result_key(name), "somebody else's")
        app.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, task_id=name)
    good = app.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE)
    assert good.get(timeout=PATIENCE_S)["finish_reason"] in ("length", "stop")
    wait_until(lambda: num_held(root) == 0, "every message is acked", PATIENCE_S)
    assert all(f'"{name}"' in worker_of_m.log for name in names)


def num_held(root: Any) -> int:
    """Messages in a worker's hands."""
    return sum(root.hlen(key) for key in root.keys("herd:*unacked"))
