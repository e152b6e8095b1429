"""The part that both clients share. It has no connection: each method is a dialogue."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from redis.exceptions import NoPermissionError, RedisError

from llama_herd.errors import JobNotFound
from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.client.cancel_jobs import Selection
from llama_herd.tasks.client.dead import Dead
from llama_herd.tasks.client.follow import Follower
from llama_herd.tasks.client.history import History, history
from llama_herd.tasks.client.job_status import ActiveState, Glance, JobStatus, glance, job_status, jobs
from llama_herd.tasks.client.lots import JobToSubmit, Lots
from llama_herd.tasks.client.purge import purge, purge_ended
from llama_herd.tasks.client.status import Status, status
from llama_herd.tasks.client.submission import Accepted, checked_id, checked_run, enqueue, new_job
from llama_herd.tasks.client.waiting import Waiting
from llama_herd.tasks.events import Event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.answers import Cancellation, Place
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.notice import CancelReason
from llama_herd.tasks.ledger.redis_call import Dialogue, ask
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.message import queue_name
from llama_herd.tasks.redis_url import checked_url
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus


class ClientCore:
    """Settings, keys and dialogues of a client. `Client` documents what each method does and raises."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = checked_url(self.settings.redis_url)
        self.ledger = Ledger.of(self.settings)
        self.reports = Reports(self.settings.tenant)
        self.dead = Dead(self.settings, self.ledger, DeadLetters.of(self.settings))

    @classmethod
    def of(cls, settings: Settings | None, **given: str | int | None) -> Self:
        """Make a core by `settings`, by default from the environment, with the `given` values but None."""
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
    ) -> Dialogue[Accepted]:
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

    def waiting(self, job_id: str, after: int) -> Waiting:
        return Waiting(self.ledger, checked_id(job_id), after=after)

    def catch_up(self, follower: Follower, limit: int = 0) -> Dialogue[list[Event]]:
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
                raise TimeoutError(f"{error}{(yield from self._note(job_id))}") from None
        return events

    def _note(self, job_id: str) -> Dialogue[str]:
        """Say what is wrong with a job's queue, if anything is and this user may know it."""
        try:
            note = (yield from self.job(job_id)).note
        except (RedisError, JobNotFound):
            return ""
        return f": {note}" if note else ""

    def place(self, job_id: str) -> Dialogue[Place | None]:
        return ask(self.ledger.place(checked_id(job_id)))

    def cancel(self, job_id: str, reason: CancelReason) -> Dialogue[Cancellation]:
        return ask(self.ledger.cancel(checked_id(job_id), reason))

    def job(self, job_id: str) -> Dialogue[JobStatus]:
        return job_status(self.ledger, checked_id(job_id))

    def jobs(
        self, model: str | None, state: ActiveState | None, older_s: float | None, limit: int
    ) -> Dialogue[list[JobStatus]]:
        return jobs(self.ledger, model, state, older_s, limit)

    def count_jobs(self, model: str | None, run_id: str | None) -> Dialogue[int]:
        return Selection(self.ledger, model, run_id).count()

    def cancel_jobs(self, model: str | None, run_id: str | None) -> Dialogue[int]:
        if model is None and run_id is None:
            raise TypeError("give a model or a run_id")
        return Selection(self.ledger, model, run_id).cancel()

    def purge(self, job_id: str, search: bool = False) -> Dialogue[None]:
        return purge(self.ledger, checked_id(job_id), self.queue, search=search)

    def purge_ended(self) -> Dialogue[int]:
        return purge_ended(self.ledger)

    def drop(self, name: str) -> Dialogue[None]:
        return self.dead.drop(name, self.queue)

    def history(self, job_id: str) -> Dialogue[History]:
        return history(self.ledger, job_id)

    def batches(self) -> Dialogue[list[BatchStatus]]:
        return ask(self.reports.batches())

    def report_batch(self, status: BatchStatus) -> Dialogue[bool]:
        return ask(self.reports.report_batch(status))

    def end_batch(self, run_id: str) -> Dialogue[bool]:
        return ask(self.reports.end_batch(checked_run(run_id)))

    def workers(self) -> Dialogue[list[WorkerStatus]]:
        return ask(self.reports.workers())

    def status(self) -> Dialogue[Status]:
        return status(self.ledger, self.queue)

    def glance(self, limit: int) -> Dialogue[Glance]:
        return glance(self.ledger, self.queue, limit)
