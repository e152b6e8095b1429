"""Jobs that Celery itself ends: revoked or expired, known to the ledger or not, each has its one end."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from celery.result import AsyncResult
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.events import End, FinishReason, Started, Token
from llama_herd.tasks.message import TASK_NAME, queue_name
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, held, kombu_note, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

FIELDS = {"prompt": "a tale", "sampling": {"max_tokens": 4096}}


@pytest.fixture(scope="module")
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(server.url, model="endless") as client:
        yield client


@pytest.fixture(scope="module")
def app(server: EmbeddedRedis) -> Celery:
    return make_app(Settings(redis_url=server.url))


@pytest.fixture(scope="module", autouse=True)
def worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "endless.gguf", eos=False, context_length=8192)
    with WorkerProcess(
        server.url,
        model,
        "w",
        folder / "log",
        include="tests.worker.standstill",
        env={"STANDSTILL": str(folder)},
        slots=1,
        remote_control=True,
    ) as worker:
        yield worker


def ends_once(client: Client, job_id: str, reason: FinishReason) -> None:
    events = list(client.stream(job_id, timeout_s=PATIENCE_S))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.finish_reason for event in events if isinstance(event, End)] == [reason]


def test_a_running_and_a_waiting_job_are_revoked(client: Client, app: Celery, worker: WorkerProcess) -> None:
    with held(worker.log_path.parent, num_tokens=1):
        running, waiting = (client.submit(**FIELDS) for _ in range(2))  # type: ignore[arg-type]
        assert isinstance(next(client.stream(running)), Started)
        wait_until(lambda: sum(one.waiting for one in client.workers()), "the other one waits")
        for job_id in (waiting, running):
            app.control.revoke(job_id, terminate=True, reply=True, timeout=PATIENCE_S, limit=1)
    for job_id in (running, waiting):
        ends_once(client, job_id, "cancelled")
        wait_until(lambda job_id=job_id: AsyncResult(job_id, app=app).state == "REVOKED", "revoked")  # type: ignore[misc]


def test_a_message_that_is_revoked_before_it_comes_has_an_end(client: Client, app: Celery) -> None:
    app.control.revoke("early-bird", reply=True, timeout=PATIENCE_S, limit=1)
    app.send_task(TASK_NAME, kwargs=FIELDS, task_id="early-bird", queue=queue_name("endless"))
    ends_once(client, "early-bird", "cancelled")


def test_a_message_that_has_expired_before_it_comes_has_an_end(client: Client, app: Celery) -> None:
    expires = datetime.now(UTC) - timedelta(seconds=1)
    sent = app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue_name("endless"), expires=expires)
    ends_once(client, sent.id, "deadline")
    assert client.result(sent.id).ids == ()


def begun_in_time(client: Client, app: Celery) -> tuple[AsyncResult, datetime]:
    """A job that runs, and until when it had to begin: soon, or later on a busy machine."""
    for patience_s in (0.5, 2, 8):
        late = datetime.now(UTC) + timedelta(seconds=patience_s)
        sent = app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue_name("endless"), expires=late)
        if any(isinstance(event, Token) for event in client.stream(sent.id, timeout_s=PATIENCE_S)):
            return sent, late
    raise TimeoutError("no job began in time")


def test_a_job_that_began_in_time_goes_on_when_its_message_comes_again(
    client: Client, app: Celery, server: EmbeddedRedis
) -> None:
    queue = queue_name("endless")
    sent, late = begun_in_time(client, app)
    wait_until(lambda: datetime.now(UTC) > late, "too late to begin")
    with Redis.from_url(server.url) as redis:
        redis.lpush(queue, json.dumps(kombu_note(redis, sent.id)[0]))  # as kombu does after a lost connection
    wait_until(lambda: AsyncResult(sent.id, app=app).state == "REVOKED", "Celery takes it for expired")
    other = app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue, expires=late)
    ends_once(client, other.id, "deadline")
    client.cancel(sent.id)
    ends_once(client, sent.id, "cancelled")
