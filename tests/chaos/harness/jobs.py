"""The jobs that a herd has accepted: submits them, reads their state, and waits for them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from llama_herd.errors import KeptFull, RedisUnavailable
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.protocol.events import Event, Started
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S, wait_until

#: A job is refused for now. `KeptFull`, too: workers lift its limit seconds after Redis has memory again.
REFUSALS = (RedisUnavailable, KeptFull)

#: Tries of a call while Redis may be away: about 15 s.
REDIS_TRIES = 40


class Jobs:
    """Talks to Redis directly, without the proxy.

    accepted: the fields of each job, by id.
    submitting: the lock of every submission; while it is held, no job is added.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.ledger = Ledger.from_settings(settings)
        # redis-py types each reply as text or bytes or nothing
        self.redis: Any = connect(settings.redis_url, tries=REDIS_TRIES)
        self.client = Client(settings=settings, model=settings.served_model)
        #: The Celery app of a sender that does not use our client.
        self.celery = make_app(settings)
        self._queue = settings.queue
        self.accepted: dict[str, Mapping[str, Any]] = {}
        self.submitting = threading.RLock()
        self._open: set[str] = set()
        self._numbers = count()

    def submit(
        self, num_jobs: int, sampling: Mapping[str, Any], *, prefix: str = "job", **fields: Any
    ) -> list[str]:
        """Submit jobs with a prompt each, made from the id; return when all are accepted."""
        return [self.accept({"sampling": sampling, **fields}, prefix) for _ in range(num_jobs)]

    def accept(self, fields: Mapping[str, Any], prefix: str = "job") -> str:
        """Submit one job, retrying while Redis is away or full, and return its id. Raises TimeoutError."""
        with self.submitting:
            job_id = f"{prefix}-{next(self._numbers)}"
            job = fields if "kind" in fields else {"prompt": f"tale of {job_id}", **fields}
            wait_until(lambda: self._is_accepted(job_id, job), f"{job_id} accepted")
        return job_id

    def _is_accepted(self, job_id: str, job: Mapping[str, Any]) -> bool:
        try:
            self.client.submit(job_id=job_id, **job)
        except REFUSALS:
            return False
        self.adopt(job_id, job)
        return True

    def accept_bare(self, fields: Mapping[str, Any]) -> str:
        """Send one job as any client of Celery may, retrying while Redis is away. Raises TimeoutError.

        Nobody but its message knows of it until a worker claims it.
        """
        with self.submitting:
            job_id = f"bare-{next(self._numbers)}"
            wait_until(lambda: self._is_sent(job_id, fields), f"{job_id} sent")
        return job_id

    def _is_sent(self, job_id: str, fields: Mapping[str, Any]) -> bool:
        try:
            self.send_bare(fields, task_id=job_id, retry=False)
        except (OperationalError, RedisError):
            return False
        return True

    def send_bare(self, fields: Mapping[str, Any], **options: Any) -> str:
        """Send one job, and return its id. options: of Celery's `send_task`."""
        job = {"prompt": "a tale", **fields}
        sent = self.celery.send_task(TASK_NAME, kwargs=job, queue=self._queue, **options)
        self.adopt(sent.id, job)
        return str(sent.id)

    def adopt(self, job_id: str, fields: Mapping[str, Any]) -> None:
        """Count a job that came without our client among the accepted ones."""
        self.accepted[job_id] = fields
        self._open.add(job_id)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block all jobs have ended, and no other thread submits any."""
        with self.submitting:
            wait_until(lambda: not self.unfinished(), "all jobs ended")
            yield

    # Their state

    def events(self, job_id: str) -> list[Event]:
        """The events in the stream now."""
        return run_call(self.redis, self.ledger.read(job_id))

    def starts(self, job_id: str) -> list[str]:
        """The workers that have started the job, in order."""
        return [event.worker for event in self.events(job_id) if isinstance(event, Started)]

    def owner(self, job_id: str) -> str:
        """The worker that started the job last; empty before its first start."""
        return next(reversed(self.starts(job_id)), "")

    def number(self, job_id: str, name: str) -> int:
        """A number in the job's record: n (recorded tokens), seq, epoch or pushes."""
        return int(self.redis.hget(self.ledger.job_key(job_id), name) or 0)

    def numbers(self, job_ids: Sequence[str], name: str) -> list[int]:
        """A number in the records of several jobs, in one round trip."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hget(self.ledger.job_key(job_id), name)
            return [int(number or 0) for number in pipeline.execute()]

    def record(self, job_id: str) -> JobRecord | None:
        """The record of a job; None if Redis does not know it."""
        return run_call(self.redis, self.ledger.record(job_id))

    def has_ended(self, job_id: str) -> bool:
        record = self.record(job_id)
        return record is not None and record.is_final

    def unfinished(self) -> list[str]:
        """The jobs that have not ended."""
        job_ids = list(self._open)
        records = run_calls(self.redis, [self.ledger.record(job_id) for job_id in job_ids])
        pairs = zip(job_ids, records, strict=True)
        self._open.difference_update(job_id for job_id, record in pairs if getattr(record, "is_final", False))
        return [job_id for job_id in job_ids if job_id in self._open]

    def running(self, worker: str = "") -> list[str]:
        """The jobs that have started and not ended: those of one worker, or of all."""
        owners = {job_id: self.owner(job_id) for job_id in self.unfinished()}
        return [job_id for job_id, owner in owners.items() if owner and worker in ("", owner)]

    # Waiting

    def wait_for(self, job_ids: Sequence[str], name: str, at_least: int) -> None:
        """Wait until a number in the record of each of these jobs is at least this large."""
        wait_until(
            lambda: min(self.numbers(job_ids, name)) >= at_least, f"{name} {at_least} of {len(job_ids)} jobs"
        )

    def wait_for_progress(self, job_ids: Sequence[str], num_tokens: int = 1) -> None:
        """Wait until each job has `num_tokens` more tokens than now, or has ended."""
        before = {job_id: self.number(job_id, "n") for job_id in job_ids}
        wait_until(
            lambda: all(
                self.number(job_id, "n") >= n + num_tokens or self.has_ended(job_id)
                for job_id, n in before.items()
            ),
            f"{num_tokens} more tokens of {len(job_ids)} jobs",
        )

    def results(self, job_ids: Sequence[str] | None = None) -> list[Result]:
        """Wait for the results of these jobs, by default of all. Raises TimeoutError."""
        job_ids = list(self.accepted) if job_ids is None else job_ids
        return [self.client.result(job_id, timeout_s=PATIENCE_S) for job_id in job_ids]

    def close(self) -> None:
        self.client.close()
        self.redis.close()
