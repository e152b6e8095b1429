"""Real workers whose device lacks memory for a while: jobs with `retries` go on later as if it had not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis import Redis

from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.job_status import JobStatus
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.events import End, Started, Token
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.tasks.settings import Settings
from tests.durable_redis import DurableRedis
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(150)]

ERROR = "DefaultCPUAllocator: can't allocate memory"
SAMPLING = {"max_tokens": 60, "temperature": 0.7, "seed": 11}
#: Nobody waits so long: a test says when the time of a retry has come.
BACKOFF_S = 3600
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": SAMPLING, "retries": 4, "retry_backoff_s": BACKOFF_S}
#: How long the message of a job is good, in seconds.
EXPIRES_S = 15


class Scene:
    """A worker of one row, and a switch that takes its memory away."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.redis_url = redis_url
        self.folder = folder
        self.model = write_tiny_gguf(folder / "tales.gguf", eos=False)
        self.fault = folder / "fault"
        self.client = Client(redis_url, model="tales")
        self.app: Celery = make_app(Settings(redis_url=redis_url))

    @contextmanager
    def worker(self, name: str) -> Iterator[WorkerProcess]:
        breaks: dict[str, Any] = {"include": "tests.worker.lost_card", "env": {"LOST_CARD": str(self.fault)}}
        log = self.folder / f"{name}.log"
        with WorkerProcess(
            self.redis_url, self.model, name, log, held_by=self.folder, slots=1, metrics_port=0, **breaks
        ) as worker:
            yield worker

    def submitted(self, **fields: Any) -> str:
        return self.client.submit(**{**JOB, **fields})

    def sent(self, *, expires: float | None = None, **fields: Any) -> str:
        queue, kwargs = queue_name("tales", "default"), {**JOB, **fields}
        return str(self.app.send_task(TASK_NAME, kwargs=kwargs, queue=queue, expires=expires).id)

    def fail(self, submit: Callable[..., str], **fields: Any) -> str:
        """Have a job fail once it has some tokens; returns when it waits for its retry."""
        with held(self.folder, num_tokens=3):
            job_id = submit(**fields)
            stream = self.client.stream(job_id, wait=True, timeout_s=PATIENCE_S)
            assert any(isinstance(event, Token) for event in stream)
            self.fault.write_text(ERROR)
        wait_until(lambda: self.client.job(job_id).retries > 0, f"{job_id} put back")
        return job_id

    def hurry(self, job_id: str) -> None:
        """Let the time of its retry have come."""
        with Redis.from_url(self.redis_url) as redis:
            redis.hset(Ledger().job_key(job_id), "retry_ms", 1)
            assert redis.zadd(Ledger().key("delayed"), {job_id: 1}, xx=True, ch=True) == 1

    def check_whole(self, job_id: str, ids: tuple[int, ...]) -> list[Started]:
        """Its events are one stream with one end, and what others would have said; returns its starts."""
        result = self.client.result(job_id, timeout_s=PATIENCE_S)
        events = list(self.client.stream(job_id, timeout_s=PATIENCE_S))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event for event in events if isinstance(event, End)] == events[-1:]
        assert (result.error, result.ids) == (None, ids)
        assert AsyncResult(job_id, app=self.app).get(timeout=PATIENCE_S)["ids"] == list(ids)
        return [event for event in events if isinstance(event, Started)]


@pytest.fixture
def server() -> Iterator[DurableRedis]:
    with DurableRedis() as server:
        yield server


@pytest.fixture
def scene(server: DurableRedis, tmp_path: Path) -> Scene:
    return Scene(server.url, tmp_path)


def waits_for_its_retry(job: JobStatus) -> bool:
    return job.state == "delayed" and (job.retry_in_s or 0) > 0


def test_a_job_that_fails_waits_and_goes_on_however_it_came(scene: Scene) -> None:
    with scene.worker("one") as worker:
        whole = scene.client.result(scene.submitted(), timeout_s=PATIENCE_S).ids
        for submit in (scene.submitted, scene.sent):
            job_id = scene.fail(submit)
            job = scene.client.job(job_id)
            assert waits_for_its_retry(job)
            assert (job.retries, job.retries_left, job.attempts) == (1, 3, 1)
            assert job.retry_error is not None
            assert job.retry_error.code == "out_of_memory"
            assert [one.job_id for one in scene.client.jobs(state="delayed")] == [job_id]
            assert AsyncResult(job_id, app=scene.app).state == "STARTED"
            scene.fault.unlink()
            scene.hurry(job_id)
            starts = scene.check_whole(job_id, whole)
            assert [(one.attempt, one.retries) for one in starts] == [(1, 0), (2, 1)]
            assert scene.client.job(job_id).attempts == 2
        assert worker.is_alive


def test_the_last_failure_is_the_end_of_it(scene: Scene) -> None:
    with scene.worker("one"):
        job_id = scene.fail(scene.submitted, retries=2, retry_backoff_s=0.1)
        result = scene.client.result(job_id, timeout_s=PATIENCE_S)
        assert result.error is not None
        assert (result.error.code, result.error.retriable, result.attempts) == ("out_of_memory", True, 3)
        job = scene.client.job(job_id)
        assert (job.state, job.retries, job.retries_left, job.attempts) == ("failed", 2, 0, 3)


def test_a_revoke_ends_it_while_it_waits(scene: Scene) -> None:
    with scene.worker("one"):
        job_id = scene.fail(scene.sent)
        AsyncResult(job_id, app=scene.app).revoke()
        with pytest.raises(TaskRevokedError):
            AsyncResult(job_id, app=scene.app).get(timeout=PATIENCE_S)
        result = scene.client.result(job_id, timeout_s=PATIENCE_S)
        assert (result.finish_reason, result.attempts) == ("cancelled", 1)
        assert result.ids


def test_a_message_that_has_expired_by_then_ends_it_as_in_celery(scene: Scene) -> None:
    with scene.worker("one"):
        job_id = scene.fail(scene.sent, expires=EXPIRES_S)
        scene.fault.unlink()
        expired_s = monotonic() + EXPIRES_S
        wait_until(lambda: monotonic() > expired_s, "its message has expired")
        scene.hurry(job_id)
        result = scene.client.result(job_id, timeout_s=PATIENCE_S)
        assert (result.finish_reason, result.attempts) == ("deadline", 1)
        assert result.ids


def test_while_it_waits_its_worker_and_redis_are_killed_and_another_goes_on(
    scene: Scene, server: DurableRedis
) -> None:
    with scene.worker("one") as one:
        whole = scene.client.result(scene.submitted(), timeout_s=PATIENCE_S).ids
        job_id = scene.fail(scene.submitted)
        assert waits_for_its_retry(scene.client.job(job_id))
        one.kill()
    scene.fault.unlink()
    with server.away():
        pass
    scene.hurry(job_id)
    with scene.worker("two"):
        starts = scene.check_whole(job_id, whole)
    assert [(start.worker, start.retries) for start in starts] == [("one@test", 0), ("two@test", 1)]


def test_a_worker_that_is_stopped_meanwhile_leaves_it_as_it_is(scene: Scene) -> None:
    with scene.worker("one") as one:
        whole = scene.client.result(scene.submitted(), timeout_s=PATIENCE_S).ids
        job_id = scene.fail(scene.submitted)
        assert one.stop() == 0
    scene.fault.unlink()
    scene.hurry(job_id)
    with scene.worker("two"):
        starts = scene.check_whole(job_id, whole)
    assert [start.retries for start in starts] == [0, 1]
