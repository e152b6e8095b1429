"""Celery tasks that are not generation: whatever they do, they are answered, and the worker lives."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import Reject, WorkerLostError
from celery.worker import state
from celery.worker.request import Request
from kombu.message import Message
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.side_task import SideTask
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tiny import write_tiny_gguf

#: What each task leads to, for who waits for its result.
ERRORS = {"side.leave": WorkerLostError, "side.exhaust": MemoryError, "side.stumble": None}


class Hub:
    """Keeps what is to be run on the hub's thread until it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        self.waiting.append((function, args))

    def run_backwards(self) -> None:
        """Celery's hub keeps no order."""
        for function, args in reversed(self.waiting):
            function(*args)


def side() -> None:
    """A task."""


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def request_of_celery() -> Iterator[Request]:
    app = Celery(set_as_current=False, backend="cache+memory://")
    app.conf.task_acks_late = True
    app.task(name="side")(side)
    headers = {"id": str(uuid4()), "task": "side"}
    message = Message(
        "[[], {}, {}]", content_type="application/json", content_encoding="utf-8", headers=headers
    )
    acks: list[str] = []
    request = Request(message, app=app, on_ack=lambda *_: acks.append("ack"), task=app.tasks["side"])
    request.acks = acks
    yield request
    state.reset_state()


def side_task(request: Request, hub: Hub, target: Callable[[], Any]) -> SideTask:
    return SideTask(target, (), request, hub.call_soon)


def test_nothing_of_a_request_is_touched_but_on_the_hub_s_thread(
    request_of_celery: Request, hub: Hub
) -> None:
    side_task(request_of_celery, hub, lambda: (0, "7", 0.1)).run()
    assert request_of_celery.time_start is None
    assert not request_of_celery.acks
    hub.run_backwards()
    assert request_of_celery.time_start is not None
    assert request_of_celery.acks == ["ack"]
    assert not state.active_requests


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), LookupError()])
def test_what_would_end_a_process_is_a_lost_worker_to_who_waits(
    error: BaseException, request_of_celery: Request, hub: Hub
) -> None:
    def fail() -> NoReturn:
        raise error

    side_task(request_of_celery, hub, fail).run()
    hub.run_backwards()
    meta = request_of_celery.task.backend.get_task_meta(request_of_celery.id)
    assert meta["status"] == "FAILURE"
    assert isinstance(meta["result"], WorkerLostError)
    assert type(error).__name__ in str(meta["result"])
    assert request_of_celery.acks == ["ack"]


def test_a_message_that_is_rejected_from_a_signal_is_no_failure_of_the_thread(
    request_of_celery: Request, hub: Hub
) -> None:
    def reject() -> NoReturn:
        raise Reject("not now", requeue=True)

    side_task(request_of_celery, hub, reject).run()
    hub.run_backwards()
    assert request_of_celery.acknowledged
    assert request_of_celery.task.backend.get_task_meta(request_of_celery.id)["status"] == "PENDING"


@pytest.fixture(scope="module")
def worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "m.gguf")
    include = "tests.worker.broker.side_tasks"
    with WorkerProcess(server.url, model, "side", folder / "log", include=include) as worker:
        yield worker


@pytest.fixture
def app(server: EmbeddedRedis) -> Celery:
    return make_app(Settings(redis_url=server.url))


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.parametrize(
    ("name", "error"),
    [("side.leave", WorkerLostError), ("side.exhaust", MemoryError), ("side.stumble", None)],
)
def test_a_task_is_answered_acked_and_logged_whatever_it_raises_where(
    name: str, error: type[Exception] | None, worker: WorkerProcess, app: Celery, redis: Redis
) -> None:
    sent = app.send_task(name, queue=queue_name("m"))
    with pytest.raises(error) if error else nullcontext():
        sent.get(timeout=PATIENCE_S)
    wait_until(lambda: not redis.hlen(Ledger().unacked_key), "its message is acked")
    (line,) = [line for line in worker.log.splitlines() if sent.id in line and "broker.side_task" in line]
    assert name in line
    assert worker.is_alive
