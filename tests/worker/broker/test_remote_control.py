"""Celery's own `inspect` and `control` on a real worker."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.control import Inspect

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

CANARY = "canary of the prompt"
FIELDS: dict[str, Any] = {"prompt": CANARY, "sampling": {"max_tokens": 4096}}
QUEUE = queue_name("m")


@pytest.fixture(scope="module")
def worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "m.gguf", eos=False, context_length=8192)
    with WorkerProcess(
        server.url,
        model,
        "w",
        folder / "log",
        slots=1,
        remote_control=True,
        include="tests.worker.broker.side_tasks",
        held_by=folder,
    ) as worker:
        yield worker


@pytest.fixture
def app(server: EmbeddedRedis, worker: WorkerProcess) -> Celery:
    return make_app(Settings(redis_url=server.url))


@pytest.fixture
def client(server: EmbeddedRedis, worker: WorkerProcess) -> Iterator[Client]:
    with Client(server.url, model="m") as client:
        yield client


def test_without_remote_control_a_worker_obeys_no_other_command(
    server: EmbeddedRedis, tmp_path: Path, client: Client
) -> None:
    """A revoke that is answered shows that what was sent before has been read."""
    shop = Celery(broker=server.url, set_as_current=False)
    with WorkerProcess(
        server.url, write_tiny_gguf(tmp_path / "closed.gguf"), "closed", tmp_path / "log"
    ) as one:
        shop.control.shutdown(destination=[one.name])
        for command in ("ping", "stats", "active", "conf", "rate_limit", "revoke_by_stamped_headers"):
            shop.control.broadcast(command, destination=[one.name])
        assert shop.control.ping(destination=[one.name], timeout=0.2) == []
        (answer,) = shop.control.revoke("no-job", destination=[one.name], reply=True, timeout=PATIENCE_S)
        assert answer == {one.name: {"ok": "1 tasks flagged as revoked"}}
        assert one.is_alive
        assert "Traceback" not in one.log


@pytest.mark.parametrize("command", ["pool_grow", "pool_shrink", "pool_restart", "autoscale"])
def test_a_command_that_resizes_the_pool_is_refused_in_one_line(
    command: str, app: Celery, worker: WorkerProcess
) -> None:
    arguments = {"max": 9, "min": 1} if command == "autoscale" else {}
    fix = "restart it with another HERD_SLOTS"
    refused(app, worker, command, arguments, f"a running worker keeps its number of slots. Fix: {fix}")


def test_a_worker_keeps_its_queues(app: Celery, client: Client, worker: WorkerProcess) -> None:
    """One that has left its queue would take no job, and count as ready."""
    why = "a running worker reads the queues of its models. Fix:"
    fix = "herd drain for one worker, herd pause for all workers of a queue"
    refused(app, worker, "cancel_consumer", {"queue": QUEUE}, f"{why} {fix}")
    fix = "another worker, or herd resume for a queue that is paused"
    refused(app, worker, "add_consumer", {"queue": "herd.other"}, f"{why} {fix}")
    job_id = client.submit(prompt="x", sampling={"max_tokens": 1})
    assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"


def refused(app: Celery, worker: WorkerProcess, command: str, arguments: dict[str, Any], why: str) -> None:
    (answer,) = app.control.broadcast(command, arguments, reply=True, timeout=PATIENCE_S, limit=1)
    assert answer == {"w@test": {"error": why}}
    assert "Traceback" not in worker.log
    assert "pidbox command error" not in worker.log


def test_inspect_shows_no_prompt_of_a_bare_message(
    app: Celery, client: Client, worker: WorkerProcess
) -> None:
    """One that runs, one that waits, one that is due later, and somebody's own task with an ETA."""
    inspect: Inspect = app.control.inspect(timeout=PATIENCE_S, limit=1)
    with held(worker.log_path.parent, num_tokens=1):
        running, waiting = (app.send_task(TASK_NAME, kwargs=FIELDS, queue=QUEUE) for _ in range(2))
        wait_until(lambda: sum(worker.waiting for worker in client.workers()), "one runs, one waits")
        later = datetime.now(UTC) + timedelta(hours=1)
        for name in (TASK_NAME, "side.stumble"):
            app.send_task(name, (CANARY,), kwargs=FIELDS, queue=QUEUE, eta=later)
        wait_until(lambda: inspect.scheduled()["w@test"], "the task of an hour later is held")
        wait_until(lambda: len(inspect.reserved()["w@test"]) == 1, "the job of an hour later is not")
        shown = {
            name: inspect._request(name, **arguments)["w@test"]
            for name, arguments in {
                "active": {},
                "reserved": {},
                "scheduled": {},
                "query_task": {"ids": [running.id, waiting.id]},
                "stats": {},
                "report": {},
                "conf": {},
            }.items()
        }
        for sent in (running, waiting):
            client.cancel(sent.id)
    assert [one["id"] for one in shown["active"]] == [running.id]
    assert [one["id"] for one in shown["reserved"]] == [waiting.id]
    assert [one["request"]["name"] for one in shown["scheduled"]] == ["side.stumble"]
    assert set(shown["query_task"]) == {running.id, waiting.id}
    assert CANARY not in json.dumps(shown)
    for sent in (running, waiting):
        assert client.result(sent.id, timeout_s=PATIENCE_S).finish_reason == "cancelled"
    assert CANARY not in worker.log


def test_a_running_job_is_ended_by_its_stamp_and_one_that_comes_later_too(
    app: Celery, client: Client, worker: WorkerProcess
) -> None:
    def send(stamp: str) -> Any:
        return app.send_task(TASK_NAME, kwargs=FIELDS, queue=QUEUE, stamped_headers=["lot"], lot=stamp)

    inspect: Inspect = app.control.inspect(timeout=PATIENCE_S, limit=1)
    with held(worker.log_path.parent, num_tokens=1):
        running, other = send("a"), send("b")
        wait_until(lambda: [one["id"] for one in inspect.active()["w@test"]] == [running.id], "it runs")
        stamps = {"lot": "a"}
        app.control.revoke_by_stamped_headers(stamps, terminate=True, reply=True, timeout=PATIENCE_S, limit=1)
        later = send("a")
    for sent in (running, later):
        assert client.result(sent.id, wait=True, timeout_s=PATIENCE_S).finish_reason == "cancelled"
        wait_until(lambda one=sent: one.state == "REVOKED", "Celery knows")  # type: ignore[misc]
    client.cancel(other.id)
    assert client.result(other.id, timeout_s=PATIENCE_S).finish_reason == "cancelled"
