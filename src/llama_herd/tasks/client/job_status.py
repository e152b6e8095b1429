"""The state of single jobs: of one by its id, or of all that wait or run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import ConfigDict

from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.notes import unserved_note
from llama_herd.tasks.client.status import QueueStatus, Status, status
from llama_herd.tasks.client.waiting import places
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.overview import MAX_PAGE, JobPage, JobRow, Overview
from llama_herd.tasks.ledger.redis_call import Dialogue
from llama_herd.tasks.message import model_of, queue_name

#: The states of jobs that `jobs` lists.
ActiveState = Literal["delayed", "queued", "unserved", "running"]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job. Times are unix milliseconds by the clock of Redis."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    job_id: str
    """Its id."""
    state: str
    """`delayed` (before its `not_before`), `queued`, `unserved` (queued, but no worker serves its model),
    `running`, `done`, `failed` or `cancelled`."""
    note: str
    """What is wrong with its queue; empty if nothing is."""
    model: str
    """The model that it is for."""
    queue: str
    """That model's queue."""
    worker: str | None
    """The last worker that had it."""
    tokens: int
    """Tokens recorded so far."""
    attempts: int
    """How often it was started."""
    submitted_ms: int
    """When it was accepted."""
    due_ms: int
    """From when it may run."""
    deadline_ms: int | None
    """When it is ended."""
    now_ms: int
    """When all this was so."""
    position: int | None = None
    """How many jobs are waiting up to it, as `Client.place` says; None if it does not wait."""
    estimated_wait_s: float | None = None
    """How long it will wait at the rate of late; None if unknown, or if it does not wait."""

    @property
    def waited_s(self) -> float:
        """The time for which the job has been due, in seconds."""
        return max(0, self.now_ms - self.due_ms) / 1000

    @property
    def left_s(self) -> float | None:
        """The time until the job's deadline, in seconds; None: it has none."""
        return None if self.deadline_ms is None else max(0, self.deadline_ms - self.now_ms) / 1000


def job_status(ledger: Ledger, job_id: str) -> Dialogue[JobStatus]:
    """Look at one job. Raises JobNotFound."""
    record = yield ledger.record(job_id)
    if record is None:
        raise JobNotFound.for_id(job_id)
    found = yield from status(ledger, record.queue)
    (place,) = yield from places(ledger, [job_id])
    times = (record.submitted_ms, record.due_ms, record.deadline_ms)
    row = JobRow(job_id, record.state, record.queue, record.worker, record.n, record.attempts, *times)
    return _of_row(row, ledger.tenant, found, found.now_ms, place)


def jobs(
    ledger: Ledger, model: str | None, state: ActiveState | None, older_s: float | None, limit: int
) -> Dialogue[list[JobStatus]]:
    """The running jobs, then the waiting ones, the oldest first.

    What it asks for grows with what it returns, not with what waits: jobs of a model, or of a state, are read
    from lists that hold no others, but for delayed ones, which have one list for all models.
    """
    queue = "" if model is None else queue_name(model, ledger.tenant)
    found = yield from status(ledger, queue or queue_name("", ledger.tenant))
    due_ms = None if older_s is None else found.now_ms - round(1000 * older_s)
    asked, listed = _Asked(Overview(ledger.tenant), queue, due_ms), list[JobStatus]()
    for lists in _lists(state, queue, found):
        left = limit - len(listed)
        rows = list[JobRow]()
        for name in lists if left else ():
            rows += yield from _first(asked, name, left)
        if len(lists) > 1:
            rows.sort(key=lambda row: (row.due_ms, row.job_id))
        shown = yield from _of_rows(rows[:left], ledger, found)
        listed += (one for one in shown if state in (None, one.state))
    return listed


class _Asked(NamedTuple):
    """A question for jobs: of which queue, '' for any, and until when they must have been due."""

    overview: Overview
    queue: str
    due_ms: int | None


def _first(asked: _Asked, name: str, limit: int) -> Dialogue[list[JobRow]]:
    """The oldest jobs of a list, as many as `limit`."""
    rows, place = list[JobRow](), 0
    while len(rows) < limit:
        most = min(limit - len(rows), MAX_PAGE)
        page: JobPage = yield asked.overview.jobs(
            name, place, queue=asked.queue, due_ms=asked.due_ms, most=most
        )
        rows += page.rows
        if page.next is None:
            break
        place = page.next
    return rows


def _lists(state: ActiveState | None, queue: str, found: Status) -> Iterator[tuple[str, ...]]:
    """The lists to read one after the other. Those in one tuple are one list together."""
    if state in (None, "running"):
        yield ("leases",)
    if state is None and not queue:
        yield ("pending",)
    elif state in (None, "queued", "unserved"):
        wanted = [one for one in found.queues if queue in ("", one.queue) and _is_in(state, one)]
        yield tuple(line for one in wanted for line in Overview.lines(one.queue))
    if state == "delayed" or (state is None and queue):
        yield ("delayed",)


def _is_in(state: ActiveState | None, queue: QueueStatus) -> bool:
    """Whether jobs that wait in a queue, and are due, are in this state."""
    return state is None or queue.is_served == (state == "queued")


class Glance(NamedTuple):
    """A tenant's state, and the oldest of its running and of its waiting jobs."""

    status: Status
    running: list[JobStatus]
    waiting: list[JobStatus]


def glance(ledger: Ledger, queue: str, limit: int) -> Dialogue[Glance]:
    """Look at a tenant in a few round trips. limit: most jobs of each kind."""
    found = yield from status(ledger, queue)
    overview = Overview(ledger.tenant)
    pages: list[JobPage] = yield [overview.jobs(index, most=limit) for index in ("leases", "pending")]
    running = yield from _of_rows(pages[0].rows, ledger, found)
    waiting = yield from _of_rows(pages[1].rows, ledger, found)
    return Glance(found, running, waiting)


def _of_rows(rows: list[JobRow], ledger: Ledger, found: Status) -> Dialogue[list[JobStatus]]:
    """The jobs of rows, with the places of those that wait."""
    waiting = [row.job_id for row in rows if row.state == "queued"]
    place_of = dict(zip(waiting, (yield from places(ledger, waiting)), strict=True))
    return [_of_row(row, ledger.tenant, found, found.now_ms, place_of.get(row.job_id)) for row in rows]


def _of_row(row: JobRow, tenant: str, found: Status, now_ms: int, place: Place | None) -> JobStatus:
    model = model_of(row.queue, tenant)
    queue = found.queue_of(model)
    state = row.state
    if state == "queued" and row.due_ms > now_ms:
        state = "delayed"
    elif state == "queued" and not (queue and queue.is_served):
        state = "unserved"
    unserved_s = queue.unserved_s if queue else None
    return JobStatus(
        job_id=row.job_id,
        state=state,
        note=unserved_note(model, unserved_s, found.served_models) if state == "unserved" else "",
        model=model,
        queue=row.queue,
        worker=row.worker,
        tokens=row.n,
        attempts=row.attempts,
        submitted_ms=row.submitted_ms,
        due_ms=row.due_ms,
        deadline_ms=row.deadline_ms,
        now_ms=now_ms,
        position=place and place.position,
        estimated_wait_s=place and place.wait_s,
    )
