"""Jobs that a Celery client revokes, or that expire: known to the ledger or not, each has its one end."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery, chord
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import End, FinishReason, Token
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.settings import NUM_LOOK_AHEAD
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
    """Somebody's own app, which knows nothing of us."""
    return Celery(broker=server.url, backend=server.url, set_as_current=False)


@pytest.fixture(scope="module", autouse=True, params=[False, True], ids=["by default", "remote control"])
def worker(
    server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[WorkerProcess]:
    """With remote control Celery's own mailbox hears of a revoke, too."""
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "endless.gguf", eos=False, context_length=8192)
    with WorkerProcess(
        server.url,
        model,
        "boxed" if request.param else "w",
        folder / "log",
        held_by=folder,
        slots=1,
        remote_control=request.param,
    ) as worker:
        yield worker
        assert worker.is_alive


def ends_once(client: Client, job_id: str, reason: FinishReason) -> None:
    events = list(client.stream(job_id, timeout_s=PATIENCE_S))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.finish_reason for event in events if isinstance(event, End)] == [reason]


def revoke(app: Celery, *job_ids: str, terminate: bool = False) -> None:
    """Returns once the worker has answered."""
    answers = app.control.revoke(list(job_ids), terminate=terminate, reply=True, timeout=PATIENCE_S, limit=1)
    assert len(answers) == 1


def is_revoked(app: Celery, job_id: str) -> bool:
    return bool(AsyncResult(job_id, app=app).state == "REVOKED")


@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.parametrize("is_bare", [False, True])
def test_a_running_and_a_waiting_job_are_revoked(
    client: Client, app: Celery, worker: WorkerProcess, terminate: bool, is_bare: bool
) -> None:
    def send() -> str:
        if is_bare:
            return str(app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue_name("endless")).id)
        return client.submit(**FIELDS)  # type: ignore[arg-type]

    with held(worker.log_path.parent, num_tokens=1):
        running, waiting = send(), send()
        assert any(isinstance(event, Token) for event in client.stream(running, timeout_s=PATIENCE_S))
        wait_until(lambda: sum(one.waiting for one in client.workers()), "the other one waits")
        states = [AsyncResult(job_id, app=app).state for job_id in (running, waiting)]
        assert states == ["STARTED", "PENDING"]
        revoke(app, waiting, running, terminate=terminate)
    for job_id in (running, waiting):
        ends_once(client, job_id, "cancelled")
        wait_until(partial(is_revoked, app, job_id), "Celery knows")
    assert client.result(running).ids, "the text so far is lost"
    assert client.result(client.submit(prompt="next", sampling={"max_tokens": 1})).finish_reason == "length"


def test_a_job_whose_message_no_worker_has_taken_is_revoked_at_once(
    client: Client, app: Celery, worker: WorkerProcess
) -> None:
    """Who waits for its result is told, although the message is still in the queue."""
    in_hand = 1 + NUM_LOOK_AHEAD
    with held(worker.log_path.parent, num_tokens=1):
        before = [client.submit(**FIELDS) for _ in range(in_hand)]  # type: ignore[arg-type]
        wait_until(lambda: client.status().running == in_hand, "the worker has its hands full")
        behind = client.submit(**FIELDS)  # type: ignore[arg-type]
        revoke(app, behind)
        ends_once(client, behind, "cancelled")
        with pytest.raises(TaskRevokedError):
            AsyncResult(behind, app=app).get(timeout=PATIENCE_S)
        revoke(app, *before)
    for job_id in before:
        ends_once(client, job_id, "cancelled")


def test_a_message_that_is_revoked_before_it_comes_has_an_end(client: Client, app: Celery) -> None:
    early = str(uuid4())
    revoke(app, early)
    app.send_task(TASK_NAME, kwargs=FIELDS, task_id=early, queue=queue_name("endless"))
    ends_once(client, early, "cancelled")
    assert client.result(early).ids == ()
    wait_until(lambda: is_revoked(app, early), "Celery knows")


@pytest.mark.parametrize("by_celery", [False, True])
def test_a_chord_ends_whose_part_is_ended_before_its_time(
    client: Client, app: Celery, by_celery: bool
) -> None:
    """Nobody has a message of that part: it comes again with the end."""
    part = app.signature(TASK_NAME, kwargs=FIELDS, queue=queue_name("endless"), countdown=3600)
    body = chord([part], app=app)(app.signature("shop.then", queue="then"))
    (delayed,) = body.parent.results
    wait_until(lambda: client.jobs(state="delayed"), "it waits for its time")
    if by_celery:
        revoke(app, delayed.id)
    else:
        client.cancel(delayed.id)
    ends_once(client, delayed.id, "cancelled")
    wait_until(lambda: body.state == "FAILURE", "the body is told")
    assert is_revoked(app, delayed.id)


def test_a_job_that_has_ended_stays_as_it_is(client: Client, app: Celery) -> None:
    sent = app.send_task(
        TASK_NAME, kwargs=FIELDS | {"sampling": {"max_tokens": 2}}, queue=queue_name("endless")
    )
    sent.get(timeout=PATIENCE_S)
    revoke(app, sent.id, terminate=True)
    assert sent.state == "SUCCESS"
    assert client.result(sent.id).finish_reason == "length"


def test_a_message_that_has_expired_before_it_comes_has_an_end(client: Client, app: Celery) -> None:
    expires = datetime.now(UTC) - timedelta(seconds=1)
    sent = app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue_name("endless"), expires=expires)
    ends_once(client, sent.id, "deadline")
    assert client.result(sent.id).ids == ()


def begun_in_time(
    client: Client, app: Celery, model: str = "endless", max_tokens: int = 4096
) -> tuple[AsyncResult, datetime]:
    """A job that runs, and until when it had to begin, which is over: soon, or later on a busy machine."""
    fields = {"prompt": "a tale", "sampling": {"max_tokens": max_tokens}}
    for patience_s in (0.5, 2, 8):
        late = datetime.now(UTC) + timedelta(seconds=patience_s)
        sent = app.send_task(TASK_NAME, kwargs=fields, queue=queue_name(model), expires=late)
        stream = client.stream(sent.id, wait=True, timeout_s=PATIENCE_S)
        if any(isinstance(event, Token) for event in stream):
            break
    else:
        raise TimeoutError("no job began in time")
    wait_until(lambda: datetime.now(UTC) > late, "too late to begin")
    return sent, late


def test_a_job_that_began_in_time_goes_on_when_its_message_comes_again(
    client: Client, app: Celery, server: EmbeddedRedis, worker: WorkerProcess
) -> None:
    queue = queue_name("endless")
    with held(worker.log_path.parent, num_tokens=1):
        sent, late = begun_in_time(client, app)
        with Redis.from_url(server.url) as redis:
            note = kombu_note(redis, sent.id)[0]
            redis.lpush(queue, json.dumps(note))  # as kombu does after a lost connection
        other = app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue, expires=late)
        ends_once(client, other.id, "deadline")
        assert sent.state == "STARTED"
        client.cancel(sent.id)
    ends_once(client, sent.id, "cancelled")


def test_a_job_that_began_in_time_goes_on_at_another_worker(
    client: Client, app: Celery, server: EmbeddedRedis, worker: WorkerProcess, tmp_path: Path
) -> None:
    def another(name: str) -> WorkerProcess:
        name = f"{name}-{worker.name.partition('@')[0]}"  # not that of one whose report is still there
        log = tmp_path / f"{name}.log"
        return WorkerProcess(
            server.url, worker.settings.model, name, log, held_by=tmp_path, model_name="handed-on"
        )

    with another("first") as first, held(tmp_path, num_tokens=1):
        sent, _ = begun_in_time(client, app, "handed-on", max_tokens=9)
        first.kill()
    with another("second"):
        told = sent.get(timeout=PATIENCE_S)
    assert (told["finish_reason"], told["attempts"], len(told["ids"])) == ("length", 2, 9)
