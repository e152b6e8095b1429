"""The state of single jobs: of one by its id, or of all that wait or run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ConfigDict

from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.place_watch import read_places
from llama_herd.tasks.client.status_texts import held_note, unserved_note
from llama_herd.tasks.client.submission import checked_job_id
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.ledger.answers import JobRecord, Place
from llama_herd.tasks.ledger.job_lists import JobLists, JobRow
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import read_record
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.message import model_of


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job. Times are unix milliseconds by the clock of Redis."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    job_id: str
    """Its id."""
    state: str
    """`delayed` (before its `not_before`, or before its next try), `queued`, `unserved` (queued, but no
    worker serves its model), `running`, `done`, `failed` or `cancelled`."""
    note: str
    """Why nobody takes jobs of its queue: no worker serves it, or it is paused; empty if somebody may."""
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
    finish_reason: str | None = None
    """How it ended: `stop`, `length`, `cancelled`, `deadline` or `error`. None until then."""
    cancel: str | None = None
    """What was asked for, if that ended it early: `cancelled`, `deadline`; by Celery `revoked`."""
    error: Failure | None = None
    """The error that it ended with."""
    ended_ms: int | None = None
    """When it ended; None until then."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The client's notes."""
    preemptions: int = 0
    """How often it has lost its place in the batch to a more urgent one, for longer than a second."""
    is_preempted: bool = False
    """Whether it has no place now, and goes on when it has one again."""
    retries: int = 0
    """How often it was put back after an error, to be tried again."""
    retries_left: int | None = None
    """How often it may be put back again; None: it never was, and all that it asked for are left."""
    retry_ms: int | None = None
    """When it is tried again; None: it does not wait for that."""
    retry_error: Failure | None = None
    """The error after which it was put back last; None also in a list of jobs."""

    @property
    def waited_s(self) -> float:
        """The time for which the job has been due, in seconds."""
        return max(0, self.now_ms - self.due_ms) / 1000

    @property
    def left_s(self) -> float | None:
        """The time until the job's deadline, in seconds; None: it has none."""
        return None if self.deadline_ms is None else max(0, self.deadline_ms - self.now_ms) / 1000

    @property
    def retry_in_s(self) -> float | None:
        """The time until it is tried again, in seconds; None: it does not wait for that."""
        return None if self.retry_ms is None else max(0, self.retry_ms - self.now_ms) / 1000


async def read_job_status(ledger: Ledger, job_id: str) -> JobStatus:
    """Look at one job. Only of one that waits the queues are asked, too. Raises InvalidJob, JobNotFound."""
    record, now_ms = await read_record(ledger, checked_job_id(job_id))
    if record is None:
        raise JobNotFound.for_id(job_id)
    row = JobRow(job_id, record)
    if record.state != "queued":
        return status_of(row, ledger.tenant, now_ms)
    found = await read_status(ledger, record.queue)
    (place,) = await read_places(ledger, [job_id])
    return status_of(row, ledger.tenant, found.now_ms, found, place)


class TenantSnapshot(NamedTuple):
    """A tenant's state, and the oldest of its running and of its waiting jobs."""

    status: Status
    running: list[JobStatus]
    waiting: list[JobStatus]


async def read_snapshot(ledger: Ledger, queue: str, limit: int) -> TenantSnapshot:
    """Look at a tenant in a few round trips. limit: most jobs of each kind."""
    found = await read_status(ledger, queue)
    lists = JobLists(ledger.tenant)
    running, waiting = [
        await statuses_of((await lists.jobs(index, most=limit)).rows, ledger, found)
        for index in ("leases", "pending")
    ]
    return TenantSnapshot(found, running, waiting)


async def statuses_of(rows: list[JobRow], ledger: Ledger, found: Status) -> list[JobStatus]:
    """The jobs of rows, with the places of those that wait."""
    waiting = [row.job_id for row in rows if row.record.state == "queued"]
    place_of = dict(zip(waiting, (await read_places(ledger, waiting)), strict=True))
    return [status_of(row, ledger.tenant, found.now_ms, found, place_of.get(row.job_id)) for row in rows]


def status_of(
    row: JobRow, tenant: str, now_ms: int, found: Status | None = None, place: Place | None = None
) -> JobStatus:
    """A job's state. It is `unserved` if it waits, is due, and nobody serves or has paused its model.

    found: state of the tenant, of which only a job that waits asks.
    """
    job_id, record = row
    model = model_of(record.queue, tenant)
    queue = None if found is None else found.queue_of(model)
    state, note = record.state, ""
    retry_ms = record.retry_ms if state == "queued" else None
    if state == "queued" and (retry_ms or record.due_ms) > now_ms:
        state = "delayed"
    elif state == "queued" and found and (queue is None or queue.is_unserved):
        state = "unserved"
        note = unserved_note(model, queue.unserved_s if queue else None, found.served_models)
    elif state == "queued" and queue:
        note = held_note(queue, now_ms)
    # A job that was to be cancelled may have ended by itself before.
    cancel = record.cancel if record.finish_reason in ("cancelled", "deadline") else None
    same = {name: getattr(record, name) for name in JobStatus.__slots__ if name in JobRecord.__slots__}
    return JobStatus(
        **same | {"state": state, "retry_ms": retry_ms, "cancel": cancel},
        job_id=job_id,
        note=note,
        model=model,
        tokens=record.n,
        now_ms=now_ms,
        position=place and place.position,
        estimated_wait_s=place and place.wait_s,
        is_preempted=state == "running" and record.preempted_n == record.n,
    )
