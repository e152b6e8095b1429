"""A Celery task that is not generation, such as chord_unlock or a user's own, on a thread of its own."""

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

import structlog
from celery.concurrency.base import ExceptionInfo
from celery.exceptions import TaskPredicate, WorkerLostError
from celery.worker.request import Request

from llama_herd.ops.logs import error_name
from llama_herd.worker.broker.delivery import CallSoon

log = structlog.get_logger(__name__)


class SideTask:
    """A message of such a task. Whatever the task does, its message is answered and the worker lives."""

    def __init__(
        self, target: Callable[..., Any], args: tuple[Any, ...], request: Request, call_soon: CallSoon
    ) -> None:
        """`target` is Celery's tracer, which stores the result."""
        self._target = target
        self._args = args
        self._request = request
        self._call_soon = call_soon
        self._accepted_s: float | None = None

    def run(self) -> None:
        """Run the task on this thread; the request is touched on the hub's only. Never raises."""
        self._accepted_s = monotonic()
        self._call_soon(self._guard, self._announce)
        try:
            traced = self._target(*self._args)
        except TaskPredicate:  # such as Reject, which a receiver of Celery's signals may raise
            self._call_soon(self._guard, self._fail, ExceptionInfo())
        except BaseException as error:
            self._log("task raised an error that would end the worker", error)
            self._call_soon(self._guard, self._fail, _lost_by(error))
        else:
            self._call_soon(self._guard, self._finish, traced)

    def _announce(self) -> None:
        """Announce the start, once: the hub runs callbacks in any order, so the first one does it."""
        if not self._request.time_start:
            self._request.on_accepted(os.getpid(), self._accepted_s)

    def _finish(self, traced: tuple[int, Any, float]) -> None:
        self._announce()
        self._request.on_success(traced)

    def _fail(self, failure: ExceptionInfo) -> None:
        """Celery stores the failure and acks the message."""
        self._announce()
        self._request.on_failure(failure, return_ok=True)

    def _guard(self, callback: Callable[..., None], *args: Any) -> None:
        """Log an error of Celery's callbacks, such as a signal's: it would end the hub, and so the worker."""
        try:
            callback(*args)
        except Exception as error:
            self._log("Celery callback failed", error)
            if callback != self._announce:
                self._request.acknowledge()

    def _log(self, event: str, error: BaseException) -> None:
        log.error(event, task=self._request.name, task_id=self._request.id, error=error_name(error))


def _lost_by(error: BaseException) -> ExceptionInfo:
    """The failure that Celery stores for a task that has ended its process."""
    try:
        raise WorkerLostError(f"the task raised {type(error).__name__}") from error
    except WorkerLostError:
        return ExceptionInfo()
