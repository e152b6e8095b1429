"""The whole way of a job, through a real redis-server and real Celery worker processes."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis import Redis

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

#: Long enough to be killed or stopped in the middle, and to be finished by another worker.
LONG: SamplingFields = {"max_tokens": 160, "temperature": 0.7, "seed": 11}

SHORT: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 9}}

#: So long that nobody waits for its end: the steady worker takes more than 20 seconds for it.
ENDLESS: SamplingFields = {**LONG, "max_tokens": 4096}


@pytest.fixture(scope="module")
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(server.url, model="endless") as client:
        yield client


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws EOS, so that a job runs as long as it asks for."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "endless.gguf", eos=False, context_length=8192)


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, endless: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with WorkerProcess(
        server.url, endless, "steady", log, slots=8, held_by=log.parent, step_s=0.005
    ) as worker:
        yield worker


@pytest.fixture(scope="module")
def celery_app(server: EmbeddedRedis) -> Celery:
    return make_app(Settings(redis_url=server.url))


def assert_exact(events: list[Event], result: Result) -> None:
    """The laws of one job's stream."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [isinstance(event, End) for event in events] == [False] * (len(events) - 1) + [True]
    tokens = [event for event in events if isinstance(event, Token)]
    recorded = 0
    for token in tokens:
        assert token.i == recorded
        recorded += len(token.ids)
    assert result.text == "".join(token.text for token in tokens)
    assert result.ids == tuple(i for token in tokens for i in token.ids)
    assert result.usage is not None
    assert result.usage.completion_tokens == recorded


def test_stream_result_and_celery_result_agree(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    job_id = client.submit(prompt="a tale", sampling={"max_tokens": 20})
    events = list(client.stream(job_id))
    result = client.result(job_id)
    assert_exact(events, result)
    assert isinstance(events[0], Started)
    assert result.finish_reason == "length"
    assert AsyncResult(job_id, app=celery_app).get(timeout=PATIENCE_S) == result.model_dump(mode="json")


def test_a_bare_celery_message_brings_its_job(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    fields = {"prompt": "a tale", "sampling": {"max_tokens": 9, "seed": 5}}
    sent = celery_app.send_task(TASK_NAME, kwargs=fields, queue=queue_name("endless"))
    events = list(client.stream(sent.id, timeout_s=PATIENCE_S))
    result = client.result(sent.id)
    assert_exact(events, result)
    assert sent.get(timeout=PATIENCE_S) == result.model_dump(mode="json")
    assert result.seed == 5


def test_a_link_is_sent_once_though_its_job_s_message_comes_again(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    """As after a lost connection, to this worker or another."""
    link = celery_app.signature("then", queue="next")
    sent = celery_app.send_task(TASK_NAME, kwargs=SHORT, queue="parked", link=link)
    with Redis.from_url(client._core.url) as redis:
        message = redis.lpop("parked")
        for _ in range(2):
            redis.lpush(queue_name("endless"), message)
            client.result(client.submit(**SHORT), timeout_s=PATIENCE_S)  # which is read after it
            wait_until(lambda: not redis.hlen(Ledger().unacked_key), "all is acked")
        assert sent.get(timeout=PATIENCE_S)["finish_reason"] == "length"
        assert redis.llen("next") == 1


def test_a_bare_message_that_comes_too_early_is_run_when_it_is_due(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    due_ms = int(time.time() * 1000) + 1500
    fields = {"prompt": "a tale", "not_before": due_ms, "sampling": {"max_tokens": 9}}
    sent = celery_app.send_task(TASK_NAME, kwargs=fields, queue=queue_name("endless"))
    with Redis.from_url(client._core.url) as redis:
        wait_until(lambda: redis.exists(Ledger().job_key(sent.id)), "the worker knows of it")
        wait_until(lambda: not redis.hlen(Ledger().unacked_key), "its message is acked")
    result = client.result(sent.id, timeout_s=PATIENCE_S)
    assert sent.get(timeout=PATIENCE_S) == result.model_dump(mode="json")
    assert time.time() * 1000 >= due_ms
    assert result.attempts == 1


def test_an_invalid_job_names_every_wrong_field_and_stops_nothing_else(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    fields = {"prompt": "secret-canary\0", "sampling": {"max_tokens": 0}, "colour": "blue"}
    bad = celery_app.send_task(TASK_NAME, kwargs=fields, queue=queue_name("endless"))
    (end,) = client.stream(bad.id, timeout_s=PATIENCE_S)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.code == "invalid_job"
    for name in ("prompt", "sampling.max_tokens", "colour"):
        assert name in end.error.message
    with pytest.raises(GenerationError, match="invalid_job"):
        bad.get(timeout=PATIENCE_S)
    assert client.result(client.submit(prompt="a", sampling={"max_tokens": 3})).finish_reason == "length"
    assert "secret-canary" not in worker.log


def test_a_message_that_asks_for_nothing_is_told_what_is_missing(
    client: Client, worker: WorkerProcess, celery_app: Celery
) -> None:
    empty = celery_app.send_task(TASK_NAME, queue=queue_name("endless"))
    with pytest.raises(GenerationError, match=r"invalid_job.*prompt"):
        empty.get(timeout=PATIENCE_S)
    assert client.result(empty.id).finish_reason == "error"


def test_a_prompt_that_is_too_long_ends_with_both_numbers(client: Client, worker: WorkerProcess) -> None:
    result = client.result(client.submit(prompt="x" * 50_000), timeout_s=PATIENCE_S)
    assert result.error is not None
    assert result.error.code == "prompt_too_long"
    assert "8192" in result.error.message


def test_cancel_reaches_a_running_job(client: Client, worker: WorkerProcess, celery_app: Celery) -> None:
    job_id = client.submit(prompt="a tale", sampling=ENDLESS)
    stream = client.stream(job_id, timeout_s=PATIENCE_S)
    seen = [next(stream), next(stream), next(stream)]
    client.cancel(job_id)
    seen += stream
    result = client.result(job_id)
    assert_exact(seen, result)
    assert result.finish_reason == "cancelled"
    assert len(result.ids) < ENDLESS["max_tokens"]
    with pytest.raises(TaskRevokedError):
        AsyncResult(job_id, app=celery_app).get(timeout=PATIENCE_S)


def test_a_deadline_ends_a_running_job_and_keeps_its_text(
    client: Client, worker: WorkerProcess, server: EmbeddedRedis, celery_app: Celery
) -> None:
    seconds, micros = Redis.from_url(server.url).time()
    deadline_ms = seconds * 1000 + micros // 1000 + 60
    job_id = client.submit(prompt="a tale", sampling=ENDLESS, deadline_ms=deadline_ms)
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert result.finish_reason == "deadline"
    assert len(result.ids) < ENDLESS["max_tokens"]
    with pytest.raises(DeadlineExceeded):
        AsyncResult(job_id, app=celery_app).get(timeout=PATIENCE_S)


def test_subscribers_early_and_late_read_the_same(
    client: Client, worker: WorkerProcess, server: EmbeddedRedis
) -> None:
    job_id = "known-before-it-exists"
    with ThreadPoolExecutor(3) as readers, Client(server.url, model="endless") as other:
        early = [readers.submit(lambda: list(other.stream(job_id, timeout_s=PATIENCE_S))) for _ in range(3)]
        client.submit(prompt="a tale", sampling={"max_tokens": 60}, job_id=job_id)
        streams = [reader.result() for reader in early]
    late = list(client.stream(job_id))
    assert streams == [late] * 3
    assert list(client.stream(job_id, after=10)) == late[10:]


def test_flush_ms_gathers_tokens_and_changes_nothing_else(client: Client, worker: WorkerProcess) -> None:
    """Also what a busy machine holds up is gathered, but not each time."""
    assert any(has_more_events_the_less_it_gathers(client) for _ in range(5))


def has_more_events_the_less_it_gathers(client: Client) -> bool:
    sampling: SamplingFields = {"max_tokens": 100, "seed": 3}
    every_step = client.submit(prompt="a tale", sampling=sampling, flush_ms=0)
    plain = client.submit(prompt="a tale", sampling=sampling)
    gathered = client.submit(prompt="a tale", sampling=sampling, flush_ms=60_000)
    streams = [list(client.stream(job_id, timeout_s=PATIENCE_S)) for job_id in (every_step, plain, gathered)]
    assert [event.type for event in streams[2]] == ["started", "token", "end"]
    assert len({client.result(job_id).ids for job_id in (every_step, plain, gathered)}) == 1
    return len(streams[0]) > len(streams[1]) > len(streams[2])


@pytest.fixture
def pair(server: EmbeddedRedis, endless: Path, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two workers that serve a model of their own, so that the steady one takes nothing from them."""
    model = tmp_path / "pair.gguf"
    model.symlink_to(endless)
    workers = [
        WorkerProcess(
            server.url,
            model,
            f"pair{index}",
            tmp_path / f"{index}.log",
            held_by=tmp_path,
            step_s=0.02,
            slots=4,
            grace_s=0,
        )
        for index in range(2)
    ]
    try:
        for one in workers:
            one.start()
        yield [one.wait_until_ready() for one in workers]
    finally:
        for one in workers:
            one.kill()


NUM_JOBS = pytest.mark.parametrize("num_jobs", [3, pytest.param(6, marks=pytest.mark.slow)])


def submit_long(client: Client, num_jobs: int) -> list[str]:
    return [client.submit(prompt=f"tale {n}", sampling=LONG, model="pair") for n in range(num_jobs)]


def is_stopping(client: Client, name: str) -> bool:
    return any(worker.name == name and worker.state == "stopping" for worker in client.workers())


def owner_of(client: Client, job_id: str) -> str:
    started = next(client.stream(job_id, timeout_s=PATIENCE_S))
    assert isinstance(started, Started)
    return started.worker


@NUM_JOBS
def test_a_stopped_worker_hands_over_what_it_cannot_finish(
    client: Client, server: EmbeddedRedis, pair: list[WorkerProcess], tmp_path: Path, num_jobs: int
) -> None:
    with held(tmp_path, num_tokens=60):
        job_ids = submit_long(client, num_jobs)
        leaving = next(one for one in pair if one.name == owner_of(client, job_ids[0]))
        leaving.signal(signal.SIGTERM)
        wait_until(lambda: is_stopping(client, leaving.name), "signal heard")
    for job_id in job_ids:
        assert_exact(list(client.stream(job_id, timeout_s=PATIENCE_S)), client.result(job_id))
    starts = [event for event in client.stream(job_ids[0]) if isinstance(event, Started)]
    assert [event.worker == leaving.name for event in starts] == [True, False]
    assert leaving.process.wait(PATIENCE_S) == 0
    ledger = Ledger()
    with Redis.from_url(server.url) as redis:
        wait_until(lambda: redis.hlen(ledger.unacked_key) == 0, "every message acknowledged")
        assert run_call(redis, ledger.num_running()) == 0
        assert run_call(redis, ledger.num_pending()) == 0


@NUM_JOBS
def test_a_killed_workers_jobs_go_on_elsewhere_with_nothing_lost_and_nothing_twice(
    client: Client, pair: list[WorkerProcess], worker: WorkerProcess, tmp_path: Path, num_jobs: int
) -> None:
    reference = client.result(client.submit(prompt="tale 0", sampling=LONG, model="endless"))
    with held(tmp_path, num_tokens=60):
        job_ids = submit_long(client, num_jobs)
        victim = next(one for one in pair if one.name == owner_of(client, job_ids[0]))
        victim.kill()
    for job_id in job_ids:
        events = list(client.stream(job_id, timeout_s=PATIENCE_S))
        result = client.result(job_id)
        assert_exact(events, result)
        assert result.usage is not None
        assert result.usage.completion_tokens == LONG["max_tokens"]
    first = client.result(job_ids[0])
    assert first.attempts == 2
    assert first.ids == reference.ids
