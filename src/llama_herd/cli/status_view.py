"""Views of `herd status` and `herd jobs`: a line for each queue, worker, job and trouble."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Group
from rich.table import Column, Table

from llama_herd.cli.batch.screen import progress_line
from llama_herd.cli.folding_table import FIGURE, NAME, WHOLE, ColumnKinds, FoldingTable
from llama_herd.cli.terminal import harmless
from llama_herd.counted import counted
from llama_herd.tasks.client.job_status import JobStatus
from llama_herd.tasks.client.status_texts import (
    UNKNOWN_TEXT,
    duration_text,
    held_note,
    place_note,
    unserved_note,
)
from llama_herd.tasks.client.tenant_status import QueueStatus, Status
from llama_herd.tasks.protocol.worker_status import TROUBLE, WorkerStatus, fleet_complaints

_QUEUE: ColumnKinds = {"model": NAME} | dict.fromkeys(
    ("waiting", "depth", "oldest", "run", "tok/s", "TTFT", "failed", "up"), FIGURE
)
_WORKER: ColumnKinds = dict.fromkeys(("worker", "state", "model", "device"), NAME) | dict.fromkeys(
    ("rows", "waiting", "KV", "hits", "tok/s"), FIGURE
)
_ANY_JOB: ColumnKinds = {"job": WHOLE, "state": NAME, "model": NAME}
_JOB = {
    **_ANY_JOB,
    **dict.fromkeys(("age", "place", "wait", "tokens"), FIGURE),
    **dict.fromkeys(("worker", "retries"), NAME),
}
_ENDED_JOB = {
    **_ANY_JOB,
    **dict.fromkeys(("ended", "took", "tokens", "attempts"), FIGURE),
    **dict.fromkeys(("worker", "why"), NAME),
}
#: From this share of their limit on it is shown what ended jobs keep.
KEPT_SHOWN = 0.75
#: Why else no worker is seen, as where Redis is full.
SILENT = ", or none can report: see herd doctor"
#: What becomes of messages in lists that no worker asks.
STRAYS = "a worker takes them within a second; else see herd doctor"


def only_model(found: Status, model: str | None) -> Status:
    """The part of a status that is about one model; all of it without a model."""
    if model is None:
        return found
    return replace(
        found,
        queues=[queue for queue in found.queues if queue.model == model],
        workers=[worker for worker in found.workers if worker.model == model],
    )


def status_view(whole: Status, model: str | None = None) -> Group:
    """The view of the whole status, or of one model's part."""
    found = only_model(whole, model)
    own = f"{counted(found.depth, 'message')} in {found.queue}"
    jobs = f"{counted(found.pending, 'job')} waiting, {found.running:,} running"
    given_up = (counted(found.poisoned, "poisoned job"), counted(found.dead_letters, "dead letter"))
    dead = f"{', '.join(given_up)}: see herd dead list"
    share = found.kept_bytes / found.kept_limit_bytes if found.kept_limit_bytes else 0.0
    kept = f"ended jobs keep {found.kept_bytes:,} of the {found.kept_limit_bytes:,} bytes that they may"
    owed = f"{counted(found.owed, 'result')} owed to the Redis of HERD_RESULT_URL: see herd doctor"
    whose = f" of {model}" if model else ""
    workers = sorted(found.workers, key=lambda worker: worker.name)
    running = (batch for batch in found.batches if batch.is_running)
    batches = (f"batch {batch.run_id} of {batch.input_name}: {progress_line(batch)}" for batch in running)
    return Group(
        f"{own}; {jobs}",
        *([dead] if found.poisoned or found.dead_letters else []),
        *([kept] if share >= KEPT_SHOWN else []),
        *([owed] if found.owed else []),
        *map(harmless, batches),
        "",
        FoldingTable(_QUEUE, map(_queue_cells, found.queues)) if found.queues else "no queue holds anything",
        "",
        FoldingTable(_WORKER, map(_worker_cells, workers)) if workers else f"no worker{whose} is up{SILENT}",
        *map(harmless, warning_lines(found, whole.served_models)),
    )


def warning_lines(found: Status, served_models: Sequence[str]) -> Iterable[str]:
    """A line for each queue that nobody serves or that is paused, and for each worker in trouble."""
    for queue in found.queues:
        if queue.stray:
            strays = f"{counted(queue.stray, 'message')} of {queue.queue}"
            yield f"{strays} in lists of another separator: {STRAYS}"
        if queue.is_unserved:
            yield unserved_note(queue.model, queue.unserved_s, served_models)
        if held := held_note(queue, found.now_ms):
            yield held
    for worker in found.workers:
        if worker.state in TROUBLE:
            yield f"{worker.name} is {worker.shown_state}: {TROUBLE[worker.state]}"
    yield from fleet_complaints(found.workers)


def job_view(job: JobStatus) -> Table:
    """The view of one job, a fact a line."""
    table = Table("", Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
    facts = {
        "job": job.job_id,
        "state": job.state,
        "reason": "" if job.error else job.cancel or job.finish_reason or "",
        "error": _error_text(job),
        "model": job.model,
        "place": "" if job.position is None else place_note(job.position, job.estimated_wait_s),
        "due": _due_text(job),
        "ended": _ended_text(job),
        "deadline": f"in {duration_text(job.left_s)}" if job.left_s else "",
        "worker": job.worker or "",
        "tokens": f"{job.tokens:,}",
        "attempts": f"{job.attempts}" if job.attempts else "",
        "retries": _retries_text(job),
        "notes": ", ".join(f"{name}={value}" for name, value in job.metadata.items()),
        "": job.note,
    }
    for name, value in facts.items():
        if value:
            table.add_row(name, harmless(value))
    return table


def jobs_view(jobs: Sequence[JobStatus]) -> Group:
    """The view of jobs, a line for each."""
    notes = dict.fromkeys(job.note for job in jobs if job.note)
    return Group(FoldingTable(_JOB, map(_job_cells, jobs)), *map(harmless, notes))


def _due_text(job: JobStatus) -> str:
    due_in_s = (job.due_ms - job.now_ms) / 1000
    return f"in {duration_text(due_in_s)}" if due_in_s > 0 else f"{duration_text(job.waited_s)} ago"


def _error_text(job: JobStatus) -> str:
    return f"{job.error.code}: {job.error.message}" if job.error else ""


def _ended_text(job: JobStatus) -> str:
    return "" if job.ended_ms is None else ", after ".join(_ended_times(job, job.ended_ms))


def _ended_times(job: JobStatus, ended_ms: int) -> tuple[str, str]:
    """How long ago it ended, and how long it took."""
    ago_s, took_s = (job.now_ms - ended_ms) / 1000, (ended_ms - job.submitted_ms) / 1000
    return f"{duration_text(max(0.0, ago_s))} ago", duration_text(max(0.0, took_s))


def ended_jobs_view(jobs: Sequence[JobStatus]) -> FoldingTable:
    """The view of jobs that have ended, a line for each."""
    return FoldingTable(_ENDED_JOB, map(_ended_cells, jobs))


def _ended_cells(job: JobStatus) -> Sequence[str]:
    times = _ended_times(job, job.now_ms if job.ended_ms is None else job.ended_ms)
    why = _error_text(job) or job.finish_reason or ""
    counts = (f"{job.tokens:,}", f"{job.attempts}")
    return (job.job_id, job.state, job.model, *times, *counts, job.worker or "", why)


def _job_cells(job: JobStatus) -> Sequence[str]:
    age = UNKNOWN_TEXT if job.state == "delayed" else duration_text(job.waited_s)
    place = "" if job.position is None else f"{job.position:,}"
    wait = "" if job.estimated_wait_s is None else duration_text(job.estimated_wait_s)
    words = (job.worker or "", _retries_text(job))
    state = "preempted" if job.is_preempted else job.state
    return job.job_id, state, job.model, age, place, wait, f"{job.tokens:,}", *words


def _retries_text(job: JobStatus) -> str:
    """How often it was put back, how often it may be yet, and when it is tried again and why."""
    if not job.retries:
        return ""
    told = [f"{job.retries} of {job.retries + (job.retries_left or 0)}"]
    if job.retry_in_s:
        told.append(f"next in {duration_text(job.retry_in_s)}")
    if job.retry_error:
        told.append(f"after {job.retry_error.code}")
    return ", ".join(told)


def _queue_cells(queue: QueueStatus) -> Sequence[str]:
    """Of a queue's workers those that still load come after a plus."""
    waits = (f"{queue.waiting:,}", f"{queue.depth:,}", duration_text(queue.oldest_s))
    head = (queue.model, *waits, f"{queue.running:,}")
    if not queue.is_served:
        return *head, UNKNOWN_TEXT, UNKNOWN_TEXT, UNKNOWN_TEXT, "none"
    up = f"{queue.workers - queue.loading}" + (f"+{queue.loading}" if queue.loading else "")
    speed, ttft = f"{queue.tokens_per_s:,.0f}", duration_text(queue.ttft_s)
    return *head, speed, ttft, f"{queue.num_failed:,}", up


def _worker_cells(worker: WorkerStatus) -> Sequence[str]:
    return (
        worker.name,
        worker.shown_state,
        worker.model,
        worker.device,
        f"{worker.running}/{worker.slots}",
        f"{worker.waiting}",
        f"{worker.kv_cache_usage:.0%}",
        f"{worker.prefix_hit_rate:.0%}",
        f"{worker.tokens_per_s:,.0f}",
    )
