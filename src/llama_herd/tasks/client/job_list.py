"""Lists of jobs: of those that run or wait, and of those that ended last."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from llama_herd.errors import BadInput, FieldError, InvalidJob
from llama_herd.tasks.client.arguments import checked_count, checked_seconds, checked_text
from llama_herd.tasks.client.job_status import JobStatus, status_of, statuses_of
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.ledger.job_lists import MAX_PAGE, Cursor, EndedChoice, JobLists, JobPage, JobRow
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import end_all_left
from llama_herd.tasks.ledger.redis_call import Dialogue, redis_time_ms
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import MAX_TTL_S

#: The states of jobs that run or wait.
ActiveState = Literal["delayed", "queued", "unserved", "running"]
#: Those of jobs that have ended; `ended` is any of these.
EndedState = Literal["ended", "done", "failed", "cancelled"]
#: The states by which jobs are listed.
ListedState = ActiveState | EndedState


ENDED: tuple[EndedState, ...] = get_args(EndedState)


@dataclass(frozen=True)
class JobChoice:
    """Which jobs to list: see `Client.jobs`. Raises BadInput for a choice that these jobs do not have."""

    model: str | None = None
    state: ListedState | None = None
    older_s: float | None = None
    since_s: float | None = None
    metadata: Mapping[str, str] | None = None
    after: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        for name in ("older_s", "since_s"):
            checked_seconds(name, getattr(self, name), 0, MAX_TTL_S, note=", ten years")
        for name in ("model", "after"):
            if getattr(self, name) is not None:
                checked_text(name, getattr(self, name))
        checked_count("limit", self.limit)
        is_ended = self.state in ENDED
        names = ("older_s",) if is_ended else ("since_s", "metadata", "after")
        for name in names:
            if getattr(self, name) is not None:
                these = "jobs that have ended" if is_ended else "jobs that run or wait"
                fix = "leave it out" if is_ended else f"a state of jobs that have ended: {', '.join(ENDED)}"
                raise BadInput(f"{name}: {these} are not chosen by it. Fix: {fix}")


async def list_jobs(ledger: Ledger, choice: JobChoice) -> list[JobStatus]:
    """The chosen jobs: the newest first if they have ended, else the running ones, then the oldest."""
    return await (_ended_jobs if choice.state in ENDED else _active_jobs)(ledger, choice)


async def _active_jobs(ledger: Ledger, choice: JobChoice) -> list[JobStatus]:
    """The running jobs, then the waiting ones, the oldest first.

    What it asks for grows with what it returns, not with what waits: jobs of a model, or of a state, are read
    from lists that hold no others, but for delayed ones, which have one list for all models.
    """
    queue = "" if choice.model is None else queue_name(choice.model, ledger.tenant)
    found = await read_status(ledger, queue or queue_name("", ledger.tenant))
    due_ms = None if choice.older_s is None else found.now_ms - round(1000 * choice.older_s)
    jobs_of = partial(JobLists(ledger.tenant).jobs, queue=queue, due_ms=due_ms)
    parts, latest = list[list[JobRow]](), dict[str, JobRow]()
    for lists in _lists_to_read(choice.state, queue, found):
        rows = [row for name in lists for row in await _rows(partial(jobs_of, name), choice.limit)]
        if len(lists) > 1:
            rows.sort(key=lambda row: (row.record.due_ms, row.job_id))
        parts.append(rows[: choice.limit])
        latest |= {row.job_id: row for row in parts[-1]}
    listed = dict.fromkeys(row.job_id for rows in reversed(parts) for row in rows)
    shown = await statuses_of([latest[job_id] for job_id in listed][: choice.limit], ledger, found)
    return [one for one in shown if choice.state in (None, one.state)]


async def _ended_jobs(ledger: Ledger, choice: JobChoice) -> list[JobStatus]:
    """The jobs that ended last, the newest first. Raises InvalidJob if `after` is none of them.

    Redis knows the newest ten thousand, and of these that failed as many; rows of batches are not among them.
    """
    await end_all_left(ledger)
    now_ms, is_failed, cursor = await redis_time_ms(), choice.state == "failed", None
    lists = JobLists(ledger.tenant)
    if choice.after is not None:
        cursor = await lists.ended_cursor(choice.after, is_failed=is_failed)
        if cursor is None:
            raise InvalidJob([FieldError("after", f"no job {choice.after} is among those that ended last")])
    asked = EndedChoice(
        queue="" if choice.model is None else queue_name(choice.model, ledger.tenant),
        state="" if choice.state in (None, "ended", "failed") else choice.state,
        since_ms=0 if choice.since_s is None else now_ms - round(1000 * choice.since_s),
        notes=choice.metadata,
    )
    ended_jobs = partial(lists.ended_jobs, choice=asked, is_failed=is_failed)
    rows = await _rows(ended_jobs, choice.limit, cursor)
    return [status_of(row, ledger.tenant, now_ms) for row in rows]


async def _rows(
    jobs_from: Callable[..., Dialogue[JobPage]], limit: int, cursor: Cursor | None = None
) -> list[JobRow]:
    """Jobs of a list, each once, as many as `limit`. jobs_from: a page of those behind a cursor."""
    rows, is_sparse = dict[str, JobRow](), False
    while len(rows) < limit:
        most = min(limit - len(rows), MAX_PAGE)
        page = await jobs_from(cursor, most=most, is_sparse=is_sparse)
        rows |= {row.job_id: row for row in page.rows}
        if page.next is None:
            break
        cursor, is_sparse = page.next, len(page.rows) < most
    return list(rows.values())


def _lists_to_read(state: ListedState | None, queue: str, found: Status) -> Iterator[tuple[str, ...]]:
    """The ledger's lists in which such jobs are: those of one tuple are to be merged by time.

    `leases` has the running jobs, `pending` all that wait, `delayed` those that are not due yet. What is due
    and waits is also in a list for each lane of its queue. They come in the order in which jobs go through
    them, so that one that moves on meanwhile is not missed.
    """
    if state == "delayed" or (state is None and queue):
        yield ("delayed",)
    if state is None and not queue:
        yield ("pending",)
    elif state in (None, "queued", "unserved"):
        yield tuple(
            line
            for one in found.queues
            if queue in ("", one.queue) and (state is None or one.is_unserved == (state == "unserved"))
            for line in JobLists.line_names(one.queue)
        )
    if state in (None, "running"):
        yield ("leases",)
