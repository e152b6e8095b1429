"""Celery tasks of a user that are not generation. Loaded by `celery worker -I`, by tests only."""

from types import MethodType
from typing import Any, NoReturn

from celery import shared_task
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
