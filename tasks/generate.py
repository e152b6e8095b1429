"""The Celery task `herd.generate`.

The work is done below Celery, by the pool, while the message is held. What is left for the task's body is to
say in Celery's terms how the job ended, so that results, links, chains and signals are Celery's own.
"""

from collections.abc import Mapping
from typing import Any

from celery import Task
from celery.app.trace import build_tracer
from celery.backends.base import Backend
from celery.exceptions import Ignore
from celery.states import FAILURE, READY_STATES, REVOKED, SUCCESS
from celery.utils.nodenames import gethostname

from llama_herd.error_code import ErrorCode
from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.app import app
from llama_herd.tasks.message import TASK_NAME
from llama_herd.tasks.result import Result

#: Where the pool leaves the `Result` for the task's body, in Celery's request dictionary.
OUTCOME = "herd_outcome"


@app.task(  # type: ignore[untyped-decorator]
    name=TASK_NAME,
    bind=True,
    # Arguments are checked by GenerationJob, which names every wrong field.
    typing=False,
    # How a job ends is not an exception of the worker: no traceback in its log.
    throws=(GenerationError, DeadlineExceeded),
    # Celery's events show a result as text: nothing of ours.
    resultrepr_maxsize=0,
    # Tells the pool that the engine runs this task.
    engine_task=True,
)
def generate(self: Task, *args: Any, **fields: Any) -> dict[str, Any]:
    """Return the job's `Result` as a dictionary; raise GenerationError or DeadlineExceeded as it ended."""
    result: Result | None = self.request.get(OUTCOME)
    if result is None:
        raise GenerationError(
            ErrorCode.WRONG_POOL,
            "this worker has no engine. Fix: celery -A llama_herd.tasks.app worker, without -P",
        )
    if result.finish_reason == "cancelled":
        self.backend.mark_as_revoked(self.request.id, "cancelled", request=self.request)
        raise Ignore
    result.raise_for_error()
    return result.model_dump(mode="json")


def trace(
    task: Task, request: Mapping[str, Any], embed: Mapping[str, Any] | None, outcome: Result
) -> tuple[int, Any]:
    """Run Celery's own tracer over a job that has ended: links, result, chord and signals.

    Returns whether the task failed, and with what. Raises what Celery could not store, which its own ways to
    run the tracer turn into a failure that nobody stores. The task's arguments are left out, so that Celery
    can neither stumble over them nor show them.
    """
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)
    ours = {"args": (), "kwargs": {}, "hostname": gethostname(), "is_eager": False, OUTCOME: outcome}
    told = {**request, **_links(embed or {}), **ours}
    value, error, _, text = task.__trace__(request["id"], (), {}, told)
    return (1, value) if error else (0, text)


def _links(embed: Mapping[str, Any]) -> dict[str, Any]:
    """What is to follow a task, by Celery's names, in Celery's form. Raises GenerationError.

    Celery takes each character of a text in a list's place for a task to be sent.
    """
    links = {name: embed.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    for name, link in links.items():
        is_right = isinstance(link, dict) if name == "chord" else _is_list_of_tasks(link)
        if link and not is_right:
            raise GenerationError(
                ErrorCode.REFUSED, f"{name} of the message must be Celery's: signatures of tasks"
            )
    return links


def _is_list_of_tasks(link: Any) -> bool:
    return isinstance(link, list) and all(isinstance(task, dict | str) for task in link)


def fail(job_id: str, error: GenerationError, backend: Backend) -> None:
    """Store that a job's result could not be stored, unless Celery knows already how the job ended."""
    if backend.get_task_meta(job_id, cache=False)["status"] not in READY_STATES:
        backend.store_result(job_id, error, FAILURE)


def correct(result: Result, backend: Backend) -> None:
    """Store how a job ended over REVOKED, which Celery has said of it by itself.

    It says so of a task whose message has expired, which is a deadline, and of a task that it revokes when
    the job has just ended otherwise.
    """
    status = backend.get_task_meta(result.job, cache=False)["status"]
    if status != REVOKED or result.finish_reason == "cancelled":
        return
    try:
        backend.store_result(result.job, result.raise_for_error().model_dump(mode="json"), SUCCESS)
    except (GenerationError, DeadlineExceeded) as error:
        backend.store_result(result.job, error, FAILURE)
