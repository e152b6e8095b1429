"""Celery tasks of a user that are not generation. Loaded by `celery worker -I`, by tests only."""

from types import MethodType
from typing import Any, NoReturn

from celery import Task, current_app, shared_task
from celery.app.task import Context
from celery.signals import task_received
from celery.worker.request import Request


@shared_task(name="side.leave")
def leave() -> NoReturn:
    raise SystemExit(3)


@shared_task(name="side.exhaust")
def exhaust() -> NoReturn:
    raise MemoryError


@shared_task(name="side.stumble")
def stumble() -> int:
    return 7


@task_received.connect
def fail_to_answer(request: Request, **_: Any) -> None:
    """As a monitor of somebody's that hangs on Celery's callbacks and breaks."""
    if request.name == "side.stumble":
        request.on_success = MethodType(fail, request)


def fail(request: Request, traced: object) -> NoReturn:
    raise IndexError


@shared_task(name="side.told")
def told(request: Context, exc: Exception, traceback: str) -> None:
    """An errback with Celery's usual signature."""
    current_app.backend.client.rpush(
        "told", f"{request.id} {type(exc).__name__} {exc} {traceback.split()[0]}"
    )


@shared_task(name="side.told_id")
def told_id(job_id: str) -> None:
    """An errback of the older kind."""
    current_app.backend.client.rpush("told", job_id)


@shared_task(name="side.told_bound", bind=True)
def told_bound(self: Task, *given: Any) -> None:
    """One that Celery takes for the older kind, since it is bound."""
    current_app.backend.client.rpush("told", " ".join(map(str, given)))


@shared_task(name="side.told_and_leave")
def told_and_leave(request: Context, exc: Exception, traceback: str) -> NoReturn:
    raise SystemExit(3)
