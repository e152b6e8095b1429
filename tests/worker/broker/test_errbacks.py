"""`link_error` of tasks that the worker has: Celery calls each as it is written."""

import gc
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.result import AsyncResult
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker]

#: Of random seeds: else one in some hundred ends by itself.
SHORT = {"max_tokens": 2, "ignore_eos": True}

QUEUE = queue_name("m")
WRONG: dict[str, Any] = {"prompt": "a tale", "colour": "blue"}
SAID = "invalid_job: colour: unknown field"


@pytest.fixture(scope="module", params=["", "default,acme"], ids=["one tenant", "tenants"])
def worker(
    server: EmbeddedRedis,
    tiny_settings: WorkerSettings,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[WorkerProcess]:
    name = "m-of-several" if request.param else "m"
    log = tmp_path_factory.mktemp("log") / "worker.log"
    options = {"model_name": "m", "tenants": request.param, "include": "tests.worker.broker.side_tasks"}
    with WorkerProcess(server.url, tiny_settings.model, name, log, **options) as worker:
        yield worker


@pytest.fixture
def app(server: EmbeddedRedis, worker: WorkerProcess) -> Iterator[Celery]:
    yield Celery(broker=server.url, backend=server.url, set_as_current=False)
    gc.collect()  # results unsubscribe when they are freed, while Redis is there


def fail(app: Celery, errback: str, **options: Any) -> AsyncResult:
    """A job that fails, and is linked to that task."""
    linked = app.signature(errback, **options)
    sent: AsyncResult = app.send_task(TASK_NAME, kwargs=WRONG, queue=QUEUE, link_error=linked)
    with pytest.raises(GenerationError, match="colour"):
        sent.get(timeout=PATIENCE_S)
    return sent


@pytest.mark.parametrize(
    ("errback", "told"),
    [
        ("side.told", "{id} GenerationError " + SAID + " Traceback"),
        ("side.told_id", "{id}"),
        ("side.told_bound", "{id}"),
    ],
)
def test_an_errback_is_called_as_it_is_written(
    app: Celery, server: EmbeddedRedis, errback: str, told: str
) -> None:
    sent = fail(app, errback)
    with Redis.from_url(server.url) as redis:
        wait_until(lambda: redis.llen("told"), "the errback is called")
        assert redis.lpop("told") == told.format(id=sent.id).encode()


def test_a_generation_may_stand_in_for_one_that_failed(app: Celery) -> None:
    other, fields = str(uuid4()), {"prompt": "a tale", "sampling": SHORT}
    fail(app, TASK_NAME, kwargs=fields, queue=QUEUE, task_id=other, immutable=True)
    assert app.AsyncResult(other).get(timeout=PATIENCE_S)["finish_reason"] == "length"


def test_an_errback_that_exits_takes_no_worker_along(app: Celery, worker: WorkerProcess) -> None:
    fail(app, "side.told_and_leave")
    sent = app.send_task(TASK_NAME, kwargs={"prompt": "a", "sampling": SHORT}, queue=QUEUE)
    assert sent.get(timeout=PATIENCE_S)["finish_reason"] == "length"
    assert worker.is_alive
