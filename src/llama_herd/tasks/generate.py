"""The Celery tasks that are jobs: `herd.generate`, `herd.embed` and `herd.rerank`.

The pool does the work, while Celery holds the message. The task's body only tells Celery how the job ended.
So results, links, chains and signals work as in any Celery task.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from celery import Task
from celery.app.trace import build_tracer
from celery.backends.base import Backend
from celery.exceptions import Ignore
from celery.states import FAILURE, READY_STATES, STARTED
from celery.utils.nodenames import gethostname

from llama_herd.error_code import ErrorCode
from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.app import app
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.protocol.message import KIND_OF_TASK, TASK_NAME
from llama_herd.tasks.protocol.ranking_job import best_first
from llama_herd.tasks.protocol.result import Result

#: Key in Celery's request dictionary under which the pool leaves the `Result` for the task's body.
OUTCOME = "herd_outcome"

NO_ENGINE = "this worker has no engine. Fix: celery -A llama_herd.tasks.app worker, without -P"
CALLED = (
    "a job is not called in place, as map, starmap, chunks and task_always_eager do. Fix: send it by "
    "apply_async, many by a group"
)

#: What the result of a job with texts tells beside these: the rest is of jobs that write text.
_OF_ALL_JOBS = {"job", "finish_reason", "usage", "attempts", "worker", "timings", "weights_digests"}

#: Most tasks that one message may link, those of its groups and chords included. A message has room for
#: thirty thousand, which a worker sends in 23 s; a thousand take 0.7 s.
MAX_LINKED_TASKS = 1000


def tell(self: Task, *args: Any, **fields: Any) -> dict[str, Any]:
    """Return what came of the job, or raise GenerationError or DeadlineExceeded."""
    result: Result | None = self.request.get(OUTCOME)
    if result is None:
        is_called = self.request.called_directly or self.request.is_eager
        raise GenerationError(ErrorCode.WRONG_POOL, CALLED if is_called else NO_ENGINE)
    if result.finish_reason == "cancelled":
        is_wanted = not self.request.ignore_result
        self.backend.mark_as_revoked(
            self.request.id, "cancelled", request=self.request, store_result=is_wanted
        )
        raise Ignore
    return _told(self.name, result)


def _job_task(name: str) -> Task:
    """A task of Celery that is a job."""
    return app.task(
        name=name,
        bind=True,
        # Arguments are checked by the job, which names every wrong field.
        typing=False,
        # A failed job is no fault of the worker: its log gets no traceback.
        throws=(GenerationError, DeadlineExceeded),
        # Celery's events would show the beginning of the result.
        resultrepr_maxsize=0,
        # Marks the tasks that the engine runs.
        engine_task=True,
    )(tell)


generate, *_ = map(_job_task, KIND_OF_TASK)


def _told(name: str, result: Result) -> dict[str, Any]:
    """The result of a task: a `Result`, or plain numbers. Raises its error."""
    result.raise_for_error()
    if name == TASK_NAME:
        return result.model_dump(mode="json")
    told, floats = result.model_dump(mode="json", include=_OF_ALL_JOBS), result.floats
    if KIND_OF_TASK[name] == "embed":
        return {**told, "vectors": [vector.tolist() for vector in floats]}
    ranks = best_first((logit for (logit,) in floats), None)
    return {**told, "ranks": [{**asdict(rank), "score": rank.score} for rank in ranks]}


def run_tracer(
    task: Task, request: Mapping[str, Any], embed: Mapping[str, Any] | None, outcome: Result
) -> tuple[int, Any]:
    """Run Celery's own tracer for a job that has ended: links, result, chord and signals.

    Returns whether the task failed, and its error or result as Celery has it. Raises the error if Celery
    could not store the result; Celery's own callers of the tracer would turn it into a failure that nobody
    stores. The task's arguments are left out, so that Celery can neither fail on them nor show them.
    """
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)
    ours = {"args": (), "kwargs": {}, "hostname": gethostname(), "is_eager": False, OUTCOME: outcome}
    told = {**request, **_links(embed or {}), **ours}
    value, error, _, text = task.__trace__(request["id"], (), {}, told)
    if not error:
        return 0, text
    error.retval.__traceback__ = None  # its frames hold it, too: each failure would leave a cycle of garbage
    return 1, value


def _links(embed: Mapping[str, Any]) -> dict[str, Any]:
    """The links of a message, by Celery's names.

    Raises GenerationError if they are too many, or do not have Celery's form: Celery would take each
    character of a string for a task to send.
    """
    links = {name: embed.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    for name, link in links.items():
        is_right = isinstance(link, dict) if name == "chord" else _is_list_of_tasks(link)
        if link and not is_right:
            raise GenerationError(
                ErrorCode.REFUSED, f"{name} of the message must be signatures of Celery tasks"
            )
    # Of a chain only the last one is sent, which takes the others along.
    num_tasks = _num_tasks({**links, "chain": (links["chain"] or [])[-1:]})
    if num_tasks > MAX_LINKED_TASKS:
        raise GenerationError(
            ErrorCode.REFUSED,
            f"the message links {num_tasks:,} tasks, and {MAX_LINKED_TASKS:,} are allowed. "
            "Fix: link one task that sends the others",
        )
    return links


def _num_tasks(links: Mapping[str, Any]) -> int:
    """How many tasks these links send at most: names, and signatures with those inside them."""
    waiting = list(links.values())
    num = sum(isinstance(task, str) for link in waiting if isinstance(link, list) for task in link)
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            num += "task" in found
            waiting += found.values()
        elif isinstance(found, list | tuple):
            waiting += found
    return num


def _is_list_of_tasks(link: Any) -> bool:
    return isinstance(link, list) and all(isinstance(task, dict | str) for task in link)


def store_started(job_id: str, worker: str, backend: Backend) -> RedisCall[None]:
    """A call that stores that the job runs, as Celery does with `task_track_started`.

    It leaves a state that Celery has alone: that of an earlier start, or of a job that has ended meanwhile.
    """
    about = {"pid": os.getpid(), "hostname": worker}
    state = {"status": STARTED, "result": about, "traceback": None, "children": [], "date_done": None}
    key = backend.get_key_for_task(job_id).decode()
    value = backend.encode({**state, "task_id": job_id})
    return RedisCall("SET", (key,), (value, "EX", int(backend.expires), "NX"), lambda _: None)


def store_failure(job_id: str, error: GenerationError, backend: Backend) -> None:
    """Store an error in place of a result that could not be stored, unless Celery already has a result."""
    if backend.get_task_meta(job_id, cache=False)["status"] not in READY_STATES:
        backend.store_result(job_id, error, FAILURE)
