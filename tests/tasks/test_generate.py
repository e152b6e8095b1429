"""The task's body: how a job's end reads in Celery's terms."""

import gc
from array import array
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
from celery import Celery, states
from celery.app.trace import build_tracer

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.generate import OUTCOME, run_tracer
from llama_herd.tasks.protocol.events import End, Failure, FinishReason, Started, Vectors
from llama_herd.tasks.protocol.message import KIND_OF_TASK, TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings

Stored = Callable[..., dict[str, Any]]
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

    def run(result: Result | None, task: str = TASK_NAME) -> dict[str, Any]:
        request = {"id": task, "hostname": "h", "is_eager": False, "delivery_info": {}, OUTCOME: result}
        build_tracer(task, app.tasks[task], app=app)(task, (), {}, request)
        meta: dict[str, Any] = app.backend.get_task_meta(task, cache=False)
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


@pytest.mark.parametrize("is_eager", [True, False])
def test_who_calls_a_job_in_place_is_told_to_send_it(app: Celery, is_eager: bool) -> None:
    """As map, starmap and chunks do, in a worker that has an engine."""
    task = app.tasks[TASK_NAME]
    with pytest.raises(GenerationError, match=r"^wrong_pool: .* by apply_async, many by a group$"):
        task.apply(kwargs={"prompt": "x"}).get() if is_eager else task(prompt="x")


def of_texts(*vectors: tuple[float, ...]) -> Result:
    """The result of a job whose texts had these vectors."""
    told = [b64encode(array("f", one).tobytes()).decode() for one in vectors]
    same: dict[str, Any] = {"job": "a", "epoch": 1}
    start = Started(
        at_ms=1, seq=1, attempt=1, worker="w", model="m", seed=1, texts=len(told), prompt_tokens=1, **same
    )
    brought = Vectors(seq=2, texts=tuple(range(len(told))), vectors=tuple(told), **same)
    end = End(seq=3, finish_reason="stop", n=len(told), attempts=1, **same)
    return Result.from_events([start, brought, end])


def test_of_texts_it_is_plain_numbers_by_the_tasks_of_their_own(stored: Stored) -> None:
    result = of_texts((0.5, -1.0), (0.25, 2.0))
    assert Result.model_validate(stored(result)["result"]) == result
    told = stored(result, "herd.embed")["result"]
    assert told["vectors"] == [[0.5, -1.0], [0.25, 2.0]]
    of_all = {"job", "finish_reason", "usage", "attempts", "worker", "timings", "weights_digests"}
    assert told.keys() == of_all | {"vectors"}
    told = stored(of_texts((-800.0,), (0.0,)), "herd.rerank")["result"]
    best, worst = {"index": 1, "logit": 0.0, "score": 0.5}, {"index": 0, "logit": -800.0, "score": 0.0}
    assert told["ranks"] == [best, worst]


@pytest.mark.parametrize("task", ["herd.embed", "herd.rerank"])
def test_a_task_that_brought_a_job_of_another_kind_fails(stored: Stored, task: str) -> None:
    """Its id was that of a job on record."""
    assert stored(ended("stop"), task)["status"] == states.FAILURE


every_task = pytest.mark.parametrize("task", KIND_OF_TASK)


@every_task
def test_a_cancelled_job_is_revoked(stored: Stored, task: str) -> None:
    assert stored(ended("cancelled"), task)["status"] == states.REVOKED


@every_task
def test_a_late_job_failed(stored: Stored, task: str) -> None:
    meta = stored(ended("deadline"), task)
    assert meta["status"] == states.FAILURE
    assert isinstance(meta["result"], DeadlineExceeded)


@every_task
def test_an_error_comes_back_whole(stored: Stored, task: str) -> None:
    meta = stored(ended("error", Failure(code="poisoned", message="gave up", retriable=True)), task)
    assert meta["status"] == states.FAILURE
    error = meta["result"]
    assert isinstance(error, GenerationError)
    assert (error.code, error.message, error.retriable) == ("poisoned", "gave up", True)


@pytest.mark.parametrize(
    "result", [ended("cancelled"), ended("deadline"), ended("error", Failure(code="poisoned", message="no"))]
)
def test_what_celery_has_of_a_failure_is_gone_once_nobody_wants_it(app: Celery, result: Result) -> None:
    gc.disable()
    try:
        failed, told = run_tracer(app.tasks[TASK_NAME], {"id": "a", "delivery_info": {}}, None, result)
        assert failed
        left = ref(told)
        del told
        assert left() is None
    finally:
        gc.enable()


def test_without_an_engine_it_says_how_to_start_one(stored: Stored) -> None:
    assert "celery -A llama_herd.tasks.app worker" in str(stored(None)["result"])


@every_task
def test_the_pool_knows_it_by_its_mark(app: Celery, task: str) -> None:
    assert app.tasks[task].engine_task
    assert not getattr(app.tasks["celery.backend_cleanup"], "engine_task", False)
