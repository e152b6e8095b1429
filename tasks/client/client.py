"""The client: submit jobs, follow their tokens, fetch results, cancel."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from types import TracebackType
from typing import Self, TypeVar, Unpack

from redis.client import PubSub

from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.client.batch.batch import Batch
from llama_herd.tasks.client.batch.row import BatchJob
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.client.core import ClientCore, Status
from llama_herd.tasks.client.dead import Retried
from llama_herd.tasks.client.history import History
from llama_herd.tasks.connection import SUBSCRIBER_TRIES, connect, redis_errors
from llama_herd.tasks.events import Event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.job_fields import JobFields
from llama_herd.tasks.ledger.answers import Cancellation, DeadJob, DeadLetter
from llama_herd.tasks.ledger.notice import CancelReason
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue
from llama_herd.tasks.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus

T = TypeVar("T")


class Client:
    """Talks to the herd through Redis.

        with Client() as client:
            job_id = client.submit(prompt="Once upon a time", sampling={"temperature": 0.8})
            for event in client.stream(job_id):
                ...
            print(client.result(job_id).text)

    Every method raises RedisUnavailable when Redis cannot be reached or refuses. A client may be used from
    several threads.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        tenant: str | None = None,
        model: str | None = None,
        settings: Settings | None = None,
        max_queue: int | None = None,
    ) -> None:
        """What is not given comes from `settings`, by default from the environment.

        max_queue: `submit` is refused while so many jobs wait for the model; 0: no limit.
        """
        self._core = ClientCore(redis_url, tenant, model, settings, max_queue)
        self._redis = connect(self._core.url)
        self._subscriber = connect(self._core.url, SUBSCRIBER_TRIES)

    def submit(
        self,
        job: GenerationJob | None = None,
        *,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[JobFields],
    ) -> str:
        """Enqueue a job, given whole or by its fields, and return its id.

        The same `job_id` with the same job again changes nothing, so a call may be repeated. An
        `idempotency_key` is a name of your own for that, such as an order's number: the id is made of it.
        Either is held as long as the job's record, until HERD_STREAM_TTL_S after the job's end. The same job
        is one that is equal in every field, times included.

        Raises InvalidJob with every wrong field, JobConflict when id or key name another job, and QueueFull
        when as many jobs or tokens wait as may.
        """
        return self._run(self._core.submit(job, fields, job_id, idempotency_key))

    def stream(
        self, job_id: str, *, after: int = 0, timeout_s: float | None = None, wait: bool = True
    ) -> Iterator[Event]:
        """The job's events after number `after`, in order, each once, up to its end.

        May be called before the job exists, unless `wait` is false, and after its end; any number of readers
        see the same. Raises TimeoutError when the job has not ended after `timeout_s`, JobNotFound when it is
        not known by then, or now if there is nothing to wait for, and RecordUnreadable when somebody else has
        written there.
        """
        follower = self._core.follower(job_id, after, timeout_s, wait)
        with redis_errors(self._core.url):
            yield from self._run(self._core.catch_up(follower))
            if follower.has_ended:
                return
            pubsub: PubSub = self._subscriber.pubsub()  # type: ignore[no-untyped-call]
            with closing(pubsub):
                pubsub.subscribe(self._core.ledger.channel(job_id))
                while not follower.has_ended:
                    events = follower.live(pubsub.get_message(timeout=follower.wait_s()))
                    yield from self._run(self._core.catch_up(follower)) if follower.is_behind else events

    def result(self, job_id: str, *, timeout_s: float | None = None, wait: bool = False) -> Result:
        """Wait for the end and return what came of the job, however it ended; raises what `stream` does.

        A job that is not known is JobNotFound at once, unless it is waited for: with a `timeout_s`, or for
        ever with `wait`. One that was sent by `send_task` is not known until a worker takes its message. A
        user in the role of a subscriber may not see which jobs there are, and waits for any.
        """
        wait = wait or timeout_s is not None
        return Result.from_events(self.stream(job_id, timeout_s=timeout_s, wait=wait))

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Cancellation:
        """End a job early. The text so far is kept."""
        return self._run(self._core.cancel(job_id, reason))

    def purge(self, job_id: str) -> None:
        """Forget a job: no key of Redis holds a byte of it any more. One that waits is cancelled first.

        Its id can be used again after HERD_STREAM_TTL_S. Raises JobRunning while a worker runs it, and
        JobNotFound. A message that was sent without our client and not claimed yet is looked for in the queue
        of this client's model. A worker that is just storing a job's result forgets it again.
        """
        self._run(self._core.purge(job_id))

    def purge_ended(self) -> int:
        """Forget all jobs that are over, also those that were given up; return how many."""
        return self._run(self._core.purge_ended())

    def dead(self, limit: int = 100) -> list[DeadJob | DeadLetter]:
        """Jobs that were given up and messages that could not be accepted, the last one first.

        They are kept for HERD_DEAD_TTL_S, of the messages the newest thousand.
        """
        return self._run(self._core.dead.list(limit))

    def retry(self, name: str) -> Retried:
        """Run a dead job again under a new id, or push a dead message back to its queue, by id or number.

        The new job has no deadline and no `not_before`, and nothing of Celery's links, chains and chords.
        Raises JobNotFound when it is not among the dead, InvalidJob when too little was kept, QueueFull.
        """
        return self._run(self._core.dead.retry(name))

    def letter(self, number: str) -> DeadLetter | None:
        """A dead message by its number; None when there is none."""
        return self._run(self._core.dead.letter(number))

    def drop(self, name: str) -> None:
        """Forget a dead message by its number, or purge a job by its id. Raises JobNotFound."""
        self._run(self._core.drop(name))

    def history(self, job_id: str) -> History:
        """All that is kept of a job: its record, its events, its body. Raises JobNotFound."""
        return self._run(self._core.history(job_id))

    def batch(
        self,
        jobs: Iterable[BatchJob],
        *,
        run_id: str | None = None,
        window: int | None = None,
        in_order: bool = False,
    ) -> Batch:
        """Run many jobs, however many there are, and iterate over what came of each, as they end.

        So many are under way as the workers hold, or `window`; of a row that is no job the item says why.
        They come after all other jobs unless they have a `priority`. An item is forgotten by Redis when the
        next one is asked for. Who stops asking leaves what is under way to the workers; `cancel` ends it.

        `jobs` that have to wait for the next one hold up the items, too; they yield None instead, and are
        asked again at the next look. A second batch with the same `run_id` and jobs takes up what is left
        of the first: jobs that it had under way go on, and those whose items were used are run again, unless
        they are left out as `BatchRow`s with their numbers.

        Raises InvalidJob when `run_id` cannot be part of a job's id.
        """
        with_window = BatchWindow(self._core, jobs, run_id=run_id, size=window, in_order=in_order)
        return Batch(self._redis, self._core.url, with_window)

    def batches(self) -> list[BatchStatus]:
        """Every `herd batch` that runs or ended within the hour."""
        return self._run(self._core.batches())

    def report_batch(self, status: BatchStatus) -> None:
        """Let `batches` show a batch; once a second while it runs."""
        self._run(self._core.report_batch(status))

    def workers(self) -> list[WorkerStatus]:
        """Every worker that lives."""
        return self._run(self._core.workers())

    def status(self) -> Status:
        """How the queue of this client's model and the tenant's jobs stand."""
        return self._run(self._core.status())

    def close(self) -> None:
        """Give the connections back."""
        self._redis.close()
        self._subscriber.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, dialogue: Dialogue[T]) -> T:
        with redis_errors(self._core.url):
            return run_dialogue(self._redis, dialogue)
