"""The part that both clients share. It has no connection: each method is a dialogue."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from redis.exceptions import NoPermissionError, RedisError

from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.dead_items import DeadItems
from llama_herd.tasks.client.follower import Follower
from llama_herd.tasks.client.history import History, read_history
from llama_herd.tasks.client.job_purge import purge_ended_jobs, purge_job
from llama_herd.tasks.client.job_status import (
    ActiveState,
    JobStatus,
    TenantSnapshot,
    list_jobs,
    read_job_status,
    read_snapshot,
)
from llama_herd.tasks.client.lots import JobToSubmit, Lots
from llama_herd.tasks.client.place_watch import PlaceWatch
from llama_herd.tasks.client.submission import AcceptedJob, checked_job_id, checked_run_id, enqueue, new_job
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.connection.redis_url import checked_url
from llama_herd.tasks.ledger.answers import Cancellation, Place
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import CancelReason, Ledger
from llama_herd.tasks.ledger.overview import Index, JobPage, Overview
from llama_herd.tasks.ledger.redis_call import Dialogue, IndependentCalls, RedisCall, ask
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings

#: How often the waiting jobs are gone through. Others join and leave meanwhile, which moves their places.
MAX_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class JobSelection:
    """The waiting and running jobs of a model, of a batch, or of a model in a batch."""

    ledger: Ledger
    model: str | None = None
    run_id: str | None = None

    def __post_init__(self) -> None:
        """Raises InvalidJob if `run_id` cannot be the name of a batch."""
        if self.run_id is not None:
            checked_run_id(self.run_id)

    def count(self) -> Dialogue[int]:
        """How many jobs these are."""
        num_found = 0
        for index in ("leases", "pending"):
            place: int | None = 0
            while place is not None:
                page = yield self._page(index, place)
                num_found += len(self._ids(page))
                place = page.next
        return num_found

    def cancel(self) -> Dialogue[int]:
        """Cancel them and return how many. The waiting ones come first, so that none begins meanwhile."""
        num_cancelled = 0
        for _ in range(MAX_ROUNDS):
            num_ended, _ = yield from self._cancel_in("pending")
            num_cancelled += num_ended
            if not num_ended:
                break
        num_ended, num_asked = yield from self._cancel_in("leases")
        return num_cancelled + num_ended + num_asked

    def _cancel_in(self, index: Index) -> Dialogue[tuple[int, int]]:
        """Go through one list. Returns how many jobs have ended, and how many their workers will end."""
        num_ended, num_asked = 0, 0
        place: int | None = 0
        while place is not None:
            page = yield self._page(index, place)
            answers = yield IndependentCalls([self.ledger.cancel(job_id) for job_id in self._ids(page)])
            num_gone = answers.count(Cancellation.CANCELLED)
            num_ended += num_gone
            num_asked += answers.count(Cancellation.ASKED)
            place = None if page.next is None else max(0, page.next - num_gone)
        return num_ended, num_asked

    def _page(self, index: Index, place: int) -> RedisCall[JobPage]:
        queue = "" if self.model is None else queue_name(self.model, self.ledger.tenant)
        prefix = "" if self.run_id is None else f"batch-{self.run_id}-"
        return Overview(self.ledger.tenant).jobs(index, place, queue=queue, prefix=prefix)

    def _ids(self, page: JobPage) -> list[str]:
        """Their ids. The name of another run may begin with this one's."""
        names = (row.job_id for row in page.rows)
        if self.run_id is None:
            return list(names)
        row_id = re.compile(rf"batch-{re.escape(self.run_id)}-[0-9]+(\.[0-9]+)?")
        return [name for name in names if row_id.fullmatch(name)]


class ClientCore:
    """Settings, keys and dialogues of a client. `Client` documents what each method does and raises."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = checked_url(self.settings.redis_url)
        self.ledger = Ledger.from_settings(self.settings)
        self.reports = Reports(self.settings.tenant)
        self.dead = DeadItems(self.settings, self.ledger, DeadLetters.from_settings(self.settings))

    @classmethod
    def from_settings(cls, settings: Settings | None, **given: str | int | None) -> Self:
        """A core with these settings, by default those of the environment; `given` values but None win."""
        known = {} if settings is None else settings.model_dump()
        return cls(Settings.read(**known | {name: one for name, one in given.items() if one is not None}))

    @property
    def queue(self) -> str:
        """The queue of the client's own model."""
        return queue_name(self.settings.default_model, self.settings.tenant)

    def submit(
        self,
        job: GenerationJob | None,
        fields: Mapping[str, Any],
        job_id: str | None,
        idempotency_key: str | None,
        traceparent: str | None = None,
    ) -> Dialogue[AcceptedJob]:
        """Check, name and enqueue a job. Raises InvalidJob, JobConflict, QueueFull, NotReplicated."""
        if job is not None and fields:
            raise TypeError("give a GenerationJob or its fields, not both")
        if job_id is not None and idempotency_key is not None:
            raise TypeError("give a job_id or an idempotency_key, not both")
        new = new_job(
            fields if job is None else job,
            self.settings,
            job_id=job_id,
            idempotency_key=idempotency_key,
            traceparent=traceparent,
        )
        return (yield from enqueue(self.ledger, new, self.settings))

    def lots(self, jobs: Iterable[JobToSubmit], max_jobs: int) -> Lots:
        return Lots(jobs, max_jobs, self.ledger, self.settings, self.url)

    def place_watch(self, job_id: str, after: int) -> PlaceWatch:
        return PlaceWatch(self.ledger, checked_job_id(job_id), after=after)

    def read_new(self, follower: Follower, limit: int = 0) -> Dialogue[list[Event]]:
        """Read new events from the stream. If there are none, check whether any can still come.

        limit: read no more than so many; there may be more if there are as many.
        """
        job_id = follower.job_id
        events = follower.stored((yield self.ledger.read(job_id, follower.last, limit)))
        if limit and len(events) == limit:
            follower.is_behind = not follower.has_ended
        elif not events:
            try:
                follower.check_record((yield self.ledger.record(job_id)))
            except NoPermissionError:  # a user in the role of a subscriber
                follower.check_stream((yield self.ledger.read(job_id, max(0, follower.last - 1))))
            except TimeoutError as error:
                raise TimeoutError(f"{error}{(yield from self._queue_note(job_id))}") from None
        return events

    def _queue_note(self, job_id: str) -> Dialogue[str]:
        """Say what is wrong with a job's queue, if anything is and this user may know it."""
        try:
            note = (yield from self.job(job_id)).note
        except (RedisError, JobNotFound):
            return ""
        return f": {note}" if note else ""

    def place(self, job_id: str) -> Dialogue[Place | None]:
        return ask(self.ledger.place(checked_job_id(job_id)))

    def cancel(self, job_id: str, reason: CancelReason) -> Dialogue[Cancellation]:
        return ask(self.ledger.cancel(checked_job_id(job_id), reason))

    def job(self, job_id: str) -> Dialogue[JobStatus]:
        return read_job_status(self.ledger, checked_job_id(job_id))

    def jobs(
        self, model: str | None, state: ActiveState | None, older_s: float | None, limit: int
    ) -> Dialogue[list[JobStatus]]:
        return list_jobs(self.ledger, model, state, older_s, limit)

    def count_jobs(self, model: str | None, run_id: str | None) -> Dialogue[int]:
        return JobSelection(self.ledger, model, run_id).count()

    def cancel_jobs(self, model: str | None, run_id: str | None) -> Dialogue[int]:
        if model is None and run_id is None:
            raise TypeError("give a model or a run_id")
        return JobSelection(self.ledger, model, run_id).cancel()

    def purge(self, job_id: str, search: bool = False) -> Dialogue[None]:
        return purge_job(self.ledger, checked_job_id(job_id), self.queue, search=search)

    def purge_ended(self) -> Dialogue[int]:
        return purge_ended_jobs(self.ledger)

    def drop(self, name: str) -> Dialogue[None]:
        return self.dead.drop(name, self.queue)

    def history(self, job_id: str) -> Dialogue[History]:
        return read_history(self.ledger, job_id)

    def batches(self) -> Dialogue[list[BatchStatus]]:
        return ask(self.reports.batches())

    def report_batch(self, status: BatchStatus) -> Dialogue[bool]:
        return ask(self.reports.report_batch(status))

    def end_batch(self, run_id: str) -> Dialogue[bool]:
        return ask(self.reports.end_batch(checked_run_id(run_id)))

    def workers(self) -> Dialogue[list[WorkerStatus]]:
        return ask(self.reports.workers())

    def status(self) -> Dialogue[Status]:
        return read_status(self.ledger, self.queue)

    def snapshot(self, limit: int) -> Dialogue[TenantSnapshot]:
        return read_snapshot(self.ledger, self.queue, limit)
