"""The client: submit jobs, follow their tokens, fetch results, cancel."""

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import TypeVar, Unpack

from redis.client import PubSub

from llama_herd.errors import RedisUnavailable, StreamRewritten, UnservedModel
from llama_herd.tasks.client.batch.batch_row import BatchJob
from llama_herd.tasks.client.batch.client_batch import ClientBatch, ProgressHook, ProgressTeller
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.dead_items import History, Retried, read_history
from llama_herd.tasks.client.embedding import Embeddings, TextCall, all_floats
from llama_herd.tasks.client.follower import Follower, read_new, time_limit_s
from llama_herd.tasks.client.job_cancel import JobSelection
from llama_herd.tasks.client.job_list import JobChoice, ListedState, list_jobs
from llama_herd.tasks.client.job_purge import purge_ended_jobs, purge_job
from llama_herd.tasks.client.job_status import JobStatus, read_job_status
from llama_herd.tasks.client.lots import MAX_LOT_JOBS, JobToSubmit, Lots, SubmitOutcome
from llama_herd.tasks.client.pausing import drain_worker, pause_queue, resume_queue, undo_drain
from llama_herd.tasks.client.place_watch import PlaceWatch, Queued
from llama_herd.tasks.client.submission import Beside, checked_job_id, checked_reason, checked_run_id
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.connection.connect import CLOSED, SUBSCRIBER_TRIES, connect, redis_errors
from llama_herd.tasks.ledger.answers import Cancellation, CancelReason, DeadJob, DeadLetter, Place
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.embedding_job import Text, sources_of
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job_fields import EmbedFields, RankFields, SubmitFields
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.ranking_job import Rank, best_first, check_top_n, ranking_sources
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings

T = TypeVar("T")


class Client(AbstractContextManager["Client"]):
    """Talks to the herd through Redis.

        with Client() as client:
            job_id = client.submit(prompt="Once upon a time", sampling={"temperature": 0.8})
            for event in client.stream(job_id):
                ...
            print(client.result(job_id).text)

    Every method raises RedisUnavailable if Redis cannot be reached or rejects the call. Several threads may
    use one client.
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
        """Absent arguments come from `settings`, which by default are read from the environment.

        max_queue: `submit` raises QueueFull while this many jobs wait for the model; 0: no limit.
        """
        given = {"redis_url": redis_url, "tenant": tenant, "model_name": model, "max_queue": max_queue}
        self._core = ClientCore.from_settings(settings, **given)
        self._redis = connect(self._core.url)
        self._subscriber = connect(self._core.url, SUBSCRIBER_TRIES)
        self._num_closes = 0

    def submit(
        self,
        job: Job | None = None,
        *,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        **fields: Unpack[SubmitFields],
    ) -> str:
        """Enqueue a job, given whole or by its fields, and return its id.

        Submitting the same job under the same `job_id` again changes nothing, so a call may be repeated. The
        same job is one that is equal in every field, times included. An `idempotency_key` is a name of your
        own, such as an order number; the id is derived from it. Both are remembered as long as the job's
        record.

        The job, its events and its result are kept for `keep_s` after its end, or HERD_STREAM_TTL_S.

        `traceparent` is the W3C's header of the trace that the job belongs to; its id is in each line that
        workers log of the job.

        Raises InvalidJob with every wrong field, JobConflict if another job has this id or key, QueueFull if
        the limit of waiting jobs or tokens is reached, and KeptFull if ended jobs keep too much of Redis.
        Raises NotReplicated if HERD_REPLICAS is set, and fewer replicas of Redis have the job in time: it may
        run, or be lost in a failover, and the same call with the same id or key makes sure of it. Warns
        (UnservedModel) if no worker serves the job's model while some serve others, unless HERD_MODELS names
        it.
        """
        beside = Beside(job_id, idempotency_key, traceparent)
        accepted = self._run(self._core.submit(job, fields, beside))
        if accepted.note:
            warnings.warn(accepted.note, UnservedModel, stacklevel=2)
        return accepted.job_id

    def submit_many(self, jobs: Iterable[JobToSubmit], *, lot: int = MAX_LOT_JOBS) -> Iterator[SubmitOutcome]:
        """Enqueue any number of jobs, and yield what became of each, in order.

            jobs = ({"prompt": text, "idempotency_key": key} for key, text in texts)
            for outcome in client.submit_many(jobs):
                print(outcome.job_id, outcome.error or "accepted")

        A job is a mapping of the arguments that `submit` takes, or a job of any kind. It is accepted or
        refused by itself: its outcome has its id, or the error that `submit` would raise.

        Jobs are read and sent as you iterate, up to `lot` of them (1 to 1,000) and 4 MiB in one round trip;
        none before the first step. If the connection is lost, the outcomes of the jobs under way have that
        error, and then it is raised. What was not yielded by then was not sent.

        A job without `keep_s` is kept for HERD_BULK_TTL_S after its end, four days: over a weekend.

        Warns (UnservedModel) once for each model that `submit` would warn of.
        """
        lots = Lots(jobs, lot, self._core)
        for entries in lots:
            try:
                outcomes, notes = self._run(lots.submit(entries))
            except RedisUnavailable as error:
                yield from lots.lost_outcomes(entries, error)
                raise
            for note in notes:
                warnings.warn(note, UnservedModel, stacklevel=2)
            yield from outcomes

    def stream(
        self,
        job_id: str,
        *,
        after: int | str = 0,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> Iterator[Event]:
        """The job's events after number `after`, in order, each once, up to its end.

        after: the number of an event, or its `cursor`, by which a reader that comes again also notices that
        Redis has lost what it has read. Any number of readers see the same events, also after the job's end.
        With `wait`, the job need not exist yet. Raises TimeoutError if the job has not ended after
        `timeout_s` seconds, and JobNotFound if it does not exist by then; without `wait`, JobNotFound comes
        at once. `timeout` is another name of `timeout_s`, as in Celery; with both, TypeError is raised.
        Raises RecordUnreadable if the stream is damaged or was not written by llama-herd, and StreamRewritten
        if Redis has lost a part that was yielded, as in a failover, and the job went on without it.
        """
        limit_s = time_limit_s(timeout_s, timeout)
        follower = Follower(job_id, after=after, timeout_s=limit_s, waits=wait)
        with closing(self._event_lists(follower)) as found:
            for events in found:
                yield from events

    def watch(
        self,
        job_id: str,
        *,
        after: int | str = 0,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> Iterator[Event | Queued]:
        """Yield the events of `stream`, and before them, while the job waits, each new place in the queue."""
        watch = PlaceWatch(self._core.ledger, job_id, after=after)
        limit_s = time_limit_s(timeout_s, timeout)
        follower = Follower(job_id, after=after, timeout_s=limit_s, waits=wait)
        with closing(self._event_lists(follower)) as found:
            for events in found:
                yield from events
                yield from self._run(watch.look_up(events))

    def _event_lists(self, follower: Follower) -> Generator[list[Event]]:
        """The events as they come, up to the end; an empty list after a silence."""
        num_closes = self._num_closes
        pubsub: PubSub = self._subscriber.pubsub()  # type: ignore[no-untyped-call]
        with redis_errors(self._core.url), closing(pubsub):
            while not follower.has_ended:
                events: list[Event] = []
                if not follower.is_behind:
                    if not pubsub.subscribed:
                        pubsub.subscribe(self._core.ledger.channel(follower.job_id))
                    message = pubsub.get_message(timeout=follower.wait_s())
                    if self._num_closes != num_closes:
                        raise RedisUnavailable(CLOSED)
                    # Behind a confirmed subscription something may be missing, as after a silence.
                    is_event = message is not None and message["type"] == "message"
                    events = follower.heard((message["data"],) if is_event else None)
                if follower.is_behind:
                    events += self._run(read_new(self._core.ledger, follower))
                if events or not follower.has_ended:
                    yield events

    def result(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = False,
    ) -> Result:
        """Wait for the end of the job and return its result, however it ended. Raises what `stream` raises.

        If the job does not exist, JobNotFound comes at once. With `timeout_s` (or `timeout`), or with `wait`
        for ever, it is waited for. A job sent by `send_task` does not exist until a worker takes its message.
        A Redis user in the role of a subscriber cannot see whether a job exists, and so always waits.
        """
        limit_s = time_limit_s(timeout_s, timeout)
        follower = Follower(job_id, timeout_s=limit_s, waits=wait or limit_s is not None)
        try:
            return self._read_result(follower)
        except StreamRewritten:
            return self._read_result(follower.anew())

    def _read_result(self, follower: Follower) -> Result:
        with closing(self._event_lists(follower)) as found:
            return Result.from_events([event for events in found for event in events])

    def embed(
        self, texts: Sequence[Text], *, timeout_s: float | None = None, **fields: Unpack[EmbedFields]
    ) -> Embeddings:
        """Wait for the vectors of texts, or of lists of token ids, and return them in their order.

            vectors = client.embed(["a llama", "an alpaca"], model="embedder").vectors

        Many texts become several jobs, which are purged at the end. If the call ends early, by an error or
        `timeout_s`, those that have not ended are cancelled.

        Raises what `submit` raises, GenerationError if a job failed, JobNotFound if one was purged, and
        TimeoutError.
        """
        sources = sources_of(texts, self._core.settings.max_prompt_bytes)
        return Embeddings.from_results(self._results(TextCall(sources, fields, timeout_s)))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        timeout_s: float | None = None,
        **fields: Unpack[RankFields],
    ) -> list[Rank]:
        """Wait for ranks of documents, and return the best `top_n` of them, or all, the best first.

            best = client.rerank("Who spits?", documents, model="reranker", top_n=3)
            print(documents[best[0].index], best[0].score)

        A document's rank does not depend on the others. As with `embed`, jobs are purged or cancelled, and it
        raises the same.
        """
        check_top_n(top_n)
        sources = ranking_sources(query, documents, self._core.settings.max_prompt_bytes)
        results = self._results(TextCall(sources, fields, timeout_s))
        return best_first((logit for (logit,) in all_floats(results)), top_n)

    def _results(self, call: TextCall) -> list[Result]:
        """The results of the jobs of a call, which are purged then; cancelled if it ends early."""
        try:
            for outcome in self.submit_many(call.jobs):
                call.note(outcome)
            found = [
                Result.from_events(self.stream(one, timeout_s=call.left_s, wait=False))
                for one in call.job_ids
            ]
        except BaseException:
            with suppress(RedisUnavailable):  # what has ended the call says more
                self._run(call.cancel(self._core.ledger))
            raise
        self._run(call.forget(self._core.ledger))
        return found

    def place(self, job_id: str) -> Place | None:
        """Where a job stands that waits for a worker, and for how long; None if it does not wait.

        `watch` tells it each time that it changes.
        Waiting jobs are counted by the time they were accepted, whatever their priority.
        """
        return self._run(self._core.ledger.place(checked_job_id(job_id)))

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Cancellation:
        """End a job early. Its text so far is kept."""
        return self._run(self._core.ledger.cancel(checked_job_id(job_id), checked_reason(reason)))

    def job(self, job_id: str) -> JobStatus:
        """State of a job: whether it waits, runs or has ended, and whether a worker serves its model.

        Raises JobNotFound.
        """
        return self._run(read_job_status(self._core.ledger, job_id))

    def jobs(
        self,
        *,
        model: str | None = None,
        state: ListedState | None = None,
        older_s: float | None = None,
        since_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[JobStatus]:
        """At most `limit` jobs that run or wait, the running ones first, then the oldest.

        older_s: only those that have been due for so long. With a state of jobs that have ended (`ended`:
        any) it lists these, the newest first, of the last ten thousand of the tenant, and as many that
        failed; rows of batches are not among them. since_s: those that ended within so many seconds.
        metadata: those with these notes. after: behind this job, the last one of the page before, which
        may be purged by now.

        Raises BadInput for a choice that these jobs do not have, and InvalidJob for an unknown `after`.
        """
        choice = JobChoice(model, state, older_s, since_s, metadata, after, limit)
        return self._run(list_jobs(self._core.ledger, choice))

    def count_jobs(self, *, model: str | None = None, run_id: str | None = None) -> int:
        """Count the jobs that run or wait; only of this model, only of the batch `run_id`."""
        return self._run(JobSelection(self._core.ledger, model, run_id).count())

    def cancel_jobs(self, *, model: str | None = None, run_id: str | None = None) -> int:
        """Cancel all jobs that run or wait of a model, of a batch, or of a model in a batch; return how many.

        A batch that is still running goes on with its other rows: end it before, by `end_batch`. A model's
        queue that no worker serves is empty afterwards, but for bare messages. Raises TypeError if neither is
        given.
        """
        return self._run(JobSelection(self._core.ledger, model, run_id).cancel())

    def purge(self, job_id: str, *, search: bool = False) -> None:
        """Delete all that Redis has of a job: no key keeps a byte of it. A waiting job is cancelled first.

        The id can be used again after HERD_STREAM_TTL_S. Raises JobRunning while a worker runs the job, and
        JobNotFound. search: look for a bare message that no worker has claimed, too: this reads the whole
        queue of this client's model. If a worker is just storing the job's result, that worker deletes it
        again.
        """
        self._run(purge_job(self._core.ledger, job_id, self._core.queue, search=search))

    def purge_ended(self) -> int:
        """Purge all jobs that are over, poisoned ones included, and return how many."""
        return self._run(purge_ended_jobs(self._core.ledger))

    def dead(self, limit: int = 100) -> list[DeadJob | DeadLetter]:
        """Poisoned jobs and dead letters, the newest first.

        They are kept for HERD_DEAD_TTL_S; of the dead letters only the newest thousand.
        """
        return self._run(self._core.dead.list(limit))

    def retry(self, name: str) -> Retried:
        """Run a job that has ended again under a new id, or push a dead letter back to its queue.

        `name` is the id of the job, or of the letter. The new job names the old one in its metadata, as
        `retry_of`. It has no deadline, no `not_before`, and none of Celery's links, chains and chords. Its id
        follows from the old one, so the same retry again is the same job. Raises JobNotFound if there is no
        such job or dead letter, JobRunning if the job has not ended, InvalidJob if the letter was not kept
        whole, and QueueFull.
        """
        return self._run(self._core.dead.retry(name))

    def letter(self, number: str) -> DeadLetter | None:
        """A dead letter by its id; None if it does not exist."""
        return self._run(self._core.dead.letter(number))

    def drop(self, name: str) -> None:
        """Delete a dead letter, or purge a job, by its id. Raises JobNotFound."""
        self._run(self._core.dead.drop(name, self._core.queue))

    def history(self, job_id: str) -> History:
        """Return all that Redis has of a job: its record, its events, its body. Raises JobNotFound."""
        return self._run(read_history(self._core.ledger, job_id))

    def batch(
        self,
        jobs: Iterable[BatchJob],
        *,
        run_id: str | None = None,
        window: int | None = None,
        in_order: bool = False,
        on_progress: ProgressHook | None = None,
        total: int | None = None,
    ) -> ClientBatch:
        """Run any number of jobs, and iterate over their results as the jobs end.

        Keeps as many jobs under way as the workers can hold, or `window`. A row that is not a valid job
        yields an item that says why. Jobs without a `priority` go after all other jobs. Asking for the next
        item deletes the job of the last one from Redis. If you stop iterating, the workers finish the jobs
        under way; `cancel` ends them.

        If the iterable `jobs` blocks, finished items wait too. It may yield None instead, and is asked again
        after a pause. A second batch with the same `run_id` and the same jobs continues the first: jobs that
        were under way go on. Rows whose items were already used run again; to leave them out, pass the others
        as `BatchRow`s with their numbers.

        on_progress is called while you iterate, twice a second at most and once at the end, with how the
        batch stands. `total` is the number of jobs for it, known of a list. What it raises comes out of the
        iteration, which may go on: no item is lost.

        Raises InvalidJob if `run_id` cannot be part of a job's id.
        """
        with_window = BatchWindow(self._core, jobs, run_id=run_id, size=window, in_order=in_order)
        teller = ProgressTeller(on_progress, with_window, jobs, total)
        return ClientBatch(self._run, with_window, teller)

    def batches(self) -> list[BatchStatus]:
        """Every batch that is running or ended within the last hour, also those over HTTP."""
        return self._run(self._core.reports.batches())

    def report_batch(self, status: BatchStatus) -> bool:
        """Report a batch, so that `batches` shows it. To be called once a second while it runs.

        Returns whether `end_batch` has asked it to end.
        """
        return self._run(self._core.report_batch(status))

    def end_batch(self, run_id: str) -> bool:
        """Ask a batch to cancel its jobs and end. Returns whether such a batch runs.

        Raises InvalidJob if `run_id` cannot be the name of a batch.
        """
        return self._run(self._core.reports.end_batch(checked_run_id(run_id)))

    def workers(self) -> list[WorkerStatus]:
        """All live workers."""
        return self._run(self._core.reports.workers())

    def status(self) -> Status:
        """State of the tenant's queues, workers and batches, whichever models they are of."""
        return self._run(read_status(self._core.ledger, self._core.queue))

    def pause(self, model: str, *, for_s: float | None = None) -> int | None:
        """Let no worker take another job of a model, within a second. Returns when that ends, in unix ms.

        None: when `resume` ends it. Jobs are still accepted, and wait; their deadlines end them as ever. Jobs
        that workers have go on, unless their worker dies. It outlives workers, and is kept by Redis like a
        job.

        for_s: it ends by itself after so many seconds. A second call replaces the first. Raises BadInput for
        a time of more than a year, and for what can be no model's name.
        """
        return self._run(pause_queue(self._core.settings.tenant, model, for_s))

    def resume(self, model: str) -> bool:
        """Let workers take jobs of a model again. Returns whether it was paused."""
        return self._run(resume_queue(self._core.settings.tenant, model))

    def drain(self, worker: str, *, for_s: float | None = None) -> int | None:
        """Let one worker take no more of this tenant's jobs. Returns when that ends, as `pause` does.

        Jobs that it has may go on for its HERD_GRACE_S; then it hands them back, and others go on at the next
        token. It stays up, and `workers` tells it as `draining`, then as `drained`, also if it is restarted
        under the same name. Raises BadInput as `pause`, and WorkerNotFound if it is not up.
        """
        return self._run(drain_worker(self._core.settings.tenant, worker, for_s))

    def undo_drain(self, worker: str) -> bool:
        """Let a worker take jobs again. Returns whether it was drained."""
        return self._run(undo_drain(self._core.settings.tenant, worker))

    def close(self) -> None:
        """Close the connections. Streams of other threads end with RedisUnavailable, within two seconds."""
        self._num_closes += 1
        self._close_idle()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, dialogue: Dialogue[T]) -> T:
        num_closes = self._num_closes
        try:
            with redis_errors(self._core.url):
                return run_dialogue(self._redis, dialogue)
        finally:
            if self._num_closes != num_closes:
                self._close_idle()

    def _close_idle(self) -> None:
        """Close what no thread uses: redis-py breaks in one whose connection another thread closes."""
        for redis in (self._redis, self._subscriber):
            redis.connection_pool.disconnect(inuse_connections=False)
