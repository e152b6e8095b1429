"""The task's body: how a job's end reads in Celery's terms."""

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, states
from celery.app.trace import build_tracer

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.generate import OUTCOME
from llama_herd.tasks.protocol.events import End, Failure, FinishReason
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings

Stored = Callable[[Result | None], dict[str, Any]]
pytestmark = pytest.mark.redis


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = make_app(Settings(redis_url=redis_url))
    app.loader.import_default_modules()
    app.finalize()
    return app


@pytest.fixture
def stored(app: Celery) -> Stored:
    """Runs the task with an outcome through Celery's tracer; answers what the backend then holds."""

    def run(result: Result | None) -> dict[str, Any]:
        request = {"id": "a", "hostname": "h", "is_eager": False, "delivery_info": {}, OUTCOME: result}
        build_tracer(TASK_NAME, app.tasks[TASK_NAME], app=app)("a", (), {}, request)
        meta: dict[str, Any] = app.backend.get_task_meta("a", cache=False)
        return meta

    return run


def ended(finish_reason: FinishReason, error: Failure | None = None) -> Result:
    end = End(seq=1, job="a", epoch=1, finish_reason=finish_reason, n=0, attempts=1, error=error)
    return Result.from_events([end])


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_a_result_is_stored_as_a_dictionary(stored: Stored, finish_reason: FinishReason) -> None:
    meta = stored(ended(finish_reason))
    assert meta["status"] == states.SUCCESS
    assert Result.model_validate(meta["result"]) == ended(finish_reason)


def test_a_cancelled_job_is_revoked(stored: Stored) -> None:
    assert stored(ended("cancelled"))["status"] == states.REVOKED


def test_a_late_job_failed(stored: Stored) -> None:
    meta = stored(ended("deadline"))
    assert meta["status"] == states.FAILURE
    assert isinstance(meta["result"], DeadlineExceeded)


def test_an_error_comes_back_whole(stored: Stored) -> None:
    meta = stored(ended("error", Failure(code="poisoned", message="gave up", retriable=True)))
    assert meta["status"] == states.FAILURE
    error = meta["result"]
    assert isinstance(error, GenerationError)
    assert (error.code, error.message, error.retriable) == ("poisoned", "gave up", True)


def test_without_an_engine_it_says_how_to_start_one(stored: Stored) -> None:
    assert "celery -A llama_herd.tasks.app worker" in str(stored(None)["result"])


def test_the_pool_knows_it_by_its_mark(app: Celery) -> None:
    assert app.tasks[TASK_NAME].engine_task
    assert not getattr(app.tasks["celery.backend_cleanup"], "engine_task", False)
