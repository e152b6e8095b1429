"""The client for asyncio, with the same methods as `llama_herd.tasks.client.client`."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Self, TypeVar, Unpack

from llama_herd.errors import RedisUnavailable, StreamRewritten, UnservedModel
from llama_herd.tasks.client.batch.batch_row import BatchJob
from llama_herd.tasks.client.batch.client_batch import AsyncBatch, ProgressHook, ProgressTeller
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.dead_items import History, Retried, read_history
from llama_herd.tasks.client.embedding import Embeddings, TextCall, all_floats
from llama_herd.tasks.client.follower import Follower, read_new, time_limit_s
from llama_herd.tasks.client.job_cancel import JobSelection
from llama_herd.tasks.client.job_list import JobChoice, ListedState, list_jobs
from llama_herd.tasks.client.job_purge import purge_ended_jobs, purge_job
from llama_herd.tasks.client.job_status import JobStatus, read_job_status
from llama_herd.tasks.client.lots import ASYNC_LOT_JOBS, JobToSubmit, Lots, SubmitOutcome
from llama_herd.tasks.client.pausing import drain_worker, pause_queue, resume_queue, undo_drain
from llama_herd.tasks.client.place_watch import PlaceWatch, Queued
from llama_herd.tasks.client.readers import Reader, Readers
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.client.submission import Beside, checked_job_id, checked_reason, checked_run_id
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.connection.cancels import uninterrupted
from llama_herd.tasks.ledger.answers import Cancellation, CancelReason, DeadJob, DeadLetter, Place
from llama_herd.tasks.ledger.redis_call import Dialogue
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

#: How long a stream waits for a Redis that was there and is away.
OUTAGE_S = 10.0


class AsyncClient:
    """Talks to the herd through Redis, without blocking the event loop.

        async with AsyncClient() as client:
            job_id = await client.submit(prompt="Once upon a time")
            async for event in client.stream(job_id):
                ...
            print((await client.result(job_id)).text)

    Each method has the arguments, the result and the errors of the same method of `Client`.
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
        given = {"redis_url": redis_url, "tenant": tenant, "model_name": model, "max_queue": max_queue}
        self._core = ClientCore.from_settings(settings, **given)
        self._readers_by_loop: dict[asyncio.AbstractEventLoop, Readers] = {}

    async def submit(
        self,
        job: Job | None = None,
        *,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        **fields: Unpack[SubmitFields],
    ) -> str:
        """Enqueue a job and return its id."""
        beside = Beside(job_id, idempotency_key, traceparent)
        accepted = await self._run(self._core.submit(job, fields, beside))
        if accepted.note:
            warnings.warn(accepted.note, UnservedModel, stacklevel=2)
        return accepted.job_id

    async def submit_many(
        self, jobs: Iterable[JobToSubmit], *, lot: int = ASYNC_LOT_JOBS
    ) -> AsyncIterator[SubmitOutcome]:
        """Enqueue any number of jobs, and yield what became of each, in order.

        Each lot is made without a pause: a smaller one keeps the event loop for a shorter time.
        """
        lots, run = Lots(jobs, lot, self._core), self._readers().connections.run
        for entries in lots:
            try:
                outcomes, notes = await run(lots.submit(entries))
            except RedisUnavailable as error:
                for outcome in lots.lost_outcomes(entries, error):
                    yield outcome
                raise
            for note in notes:
                warnings.warn(note, UnservedModel, stacklevel=2)
            for outcome in outcomes:
                yield outcome

    async def stream(
        self,
        job_id: str,
        *,
        after: int | str = 0,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> AsyncIterator[Event]:
        """The job's events after the number or cursor `after`, up to its end."""
        follower = Follower(job_id, after=after, timeout_s=time_limit_s(timeout_s, timeout), waits=wait)
        readers = self._readers()
        async with (
            readers.reading(follower) as reader,
            aclosing(self._event_lists(readers, reader)) as found,
        ):
            async for events in found:
                for event in events:
                    yield event

    async def watch(
        self,
        job_id: str,
        *,
        after: int | str = 0,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> AsyncIterator[Event | Queued]:
        """Yield the events of `stream`, and before them, while the job waits, each new place in the queue."""
        watch = PlaceWatch(self._core.ledger, job_id, after=after)
        follower = Follower(job_id, after=after, timeout_s=time_limit_s(timeout_s, timeout), waits=wait)
        readers = self._readers()
        async with (
            readers.reading(follower, asks_place=True) as reader,
            aclosing(self._event_lists(readers, reader)) as found,
        ):
            async for events in found:
                for one in (*events, *watch.changes(events, reader.place)):
                    yield one

    def _event_lists(self, readers: Readers, reader: Reader) -> AsyncGenerator[list[Event]]:
        """The events as they come, by the connections of `readers`: after `close` there may be others."""
        run, new = readers.connections.run, partial(read_new, self._core.ledger, reader.follower)
        return reader.events(lambda: run(new()), OUTAGE_S, is_patient_at_first=False)

    def _readers(self) -> Readers:
        """The readers of the running loop: no other loop can use their connections."""
        loop = asyncio.get_running_loop()
        for one in list(self._readers_by_loop):  # those of other threads come and go meanwhile
            if one.is_closed():
                self._readers_by_loop.pop(one, None)
        if loop not in self._readers_by_loop:
            self._readers_by_loop[loop] = Readers(self._core.ledger, SharedConnections(self._core.url))
        return self._readers_by_loop[loop]

    async def result(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = False,
    ) -> Result:
        """Wait for the end of the job and return its result."""
        limit_s = time_limit_s(timeout_s, timeout)
        follower = Follower(job_id, timeout_s=limit_s, waits=wait or limit_s is not None)
        return await self._result(self._readers(), follower)

    async def _result(self, readers: Readers, follower: Follower) -> Result:
        try:
            return await self._read_result(readers, follower)
        except StreamRewritten:
            return await self._read_result(readers, follower.anew())

    async def _read_result(self, readers: Readers, follower: Follower) -> Result:
        async with readers.reading(follower) as reader, aclosing(self._event_lists(readers, reader)) as found:
            return Result.from_events([event async for events in found for event in events])

    async def embed(
        self, texts: Sequence[Text], *, timeout_s: float | None = None, **fields: Unpack[EmbedFields]
    ) -> Embeddings:
        """Wait for the vectors of texts, and return them in their order."""
        sources = sources_of(texts, self._core.settings.max_prompt_bytes)
        return Embeddings.from_results(await self._results(TextCall(sources, fields, timeout_s)))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        timeout_s: float | None = None,
        **fields: Unpack[RankFields],
    ) -> list[Rank]:
        """Wait for ranks of documents, and return the best `top_n` of them, or all, the best first."""
        check_top_n(top_n)
        sources = ranking_sources(query, documents, self._core.settings.max_prompt_bytes)
        results = await self._results(TextCall(sources, fields, timeout_s))
        return best_first((logit for (logit,) in all_floats(results)), top_n)

    async def _results(self, call: TextCall) -> list[Result]:
        """The results of the jobs of a call, which are purged then; cancelled if it ends early."""
        readers = self._readers()
        try:
            async for outcome in self.submit_many(call.jobs):
                call.note(outcome)
            followers = [Follower(one, timeout_s=call.left_s, waits=False) for one in call.job_ids]
            found = [await self._result(readers, one) for one in followers]
        except BaseException:
            with suppress(RedisUnavailable):  # what has ended the call says more
                await uninterrupted(readers.connections.run(call.cancel(self._core.ledger)))
            raise
        await readers.connections.run(call.forget(self._core.ledger))
        return found

    async def place(self, job_id: str) -> Place | None:
        """Where a job stands that waits for a worker."""
        return await self._run(self._core.ledger.place(checked_job_id(job_id)))

    async def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Cancellation:
        """End a job early."""
        return await self._run(self._core.ledger.cancel(checked_job_id(job_id), checked_reason(reason)))

    async def job(self, job_id: str) -> JobStatus:
        """State of a job."""
        return await self._run(read_job_status(self._core.ledger, job_id))

    async def jobs(
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
        """At most `limit` jobs that run or wait, or of those that ended last."""
        choice = JobChoice(model, state, older_s, since_s, metadata, after, limit)
        return await self._run(list_jobs(self._core.ledger, choice))

    async def count_jobs(self, *, model: str | None = None, run_id: str | None = None) -> int:
        """Count the jobs that run or wait."""
        return await self._run(JobSelection(self._core.ledger, model, run_id).count())

    async def cancel_jobs(self, *, model: str | None = None, run_id: str | None = None) -> int:
        """Cancel all jobs of a model, of a batch, or of a model in a batch."""
        return await self._run(JobSelection(self._core.ledger, model, run_id).cancel())

    async def purge(self, job_id: str, *, search: bool = False) -> None:
        """Delete all that Redis has of a job. search: also a bare message that nobody has claimed."""
        await self._run(purge_job(self._core.ledger, job_id, self._core.queue, search=search))

    async def purge_ended(self) -> int:
        """Purge all jobs that are over, and return how many."""
        return await self._run(purge_ended_jobs(self._core.ledger))

    async def dead(self, limit: int = 100) -> list[DeadJob | DeadLetter]:
        """Poisoned jobs and dead letters."""
        return await self._run(self._core.dead.list(limit))

    async def retry(self, name: str) -> Retried:
        """Run a job that has ended again under a new id, or push a dead letter back to its queue."""
        return await self._run(self._core.dead.retry(name))

    async def letter(self, number: str) -> DeadLetter | None:
        """A dead letter by its id."""
        return await self._run(self._core.dead.letter(number))

    async def drop(self, name: str) -> None:
        """Delete a dead letter, or purge a job."""
        await self._run(self._core.dead.drop(name, self._core.queue))

    async def history(self, job_id: str) -> History:
        """Return all that Redis has of a job."""
        return await self._run(read_history(self._core.ledger, job_id))

    def batch(
        self,
        jobs: Iterable[BatchJob],
        *,
        run_id: str | None = None,
        window: int | None = None,
        in_order: bool = False,
        on_progress: ProgressHook | None = None,
        total: int | None = None,
    ) -> AsyncBatch:
        """Run many jobs as `Client.batch` does; on_progress is called in the event loop."""
        with_window = BatchWindow(self._core, jobs, run_id=run_id, size=window, in_order=in_order)
        teller = ProgressTeller(on_progress, with_window, jobs, total)
        return AsyncBatch(lambda: self._readers().connections, with_window, teller)

    async def batches(self) -> list[BatchStatus]:
        """Every batch that is running or ended within the last hour, also those over HTTP."""
        return await self._run(self._core.reports.batches())

    async def report_batch(self, status: BatchStatus) -> bool:
        """Report a batch, so that `batches` shows it. Returns whether it was asked to end."""
        return await self._run(self._core.report_batch(status))

    async def end_batch(self, run_id: str) -> bool:
        """Ask a batch to cancel its jobs and end. Returns whether such a batch runs."""
        return await self._run(self._core.reports.end_batch(checked_run_id(run_id)))

    async def workers(self) -> list[WorkerStatus]:
        """All live workers."""
        return await self._run(self._core.reports.workers())

    async def status(self) -> Status:
        """State of the tenant's queues, workers and batches."""
        return await self._run(read_status(self._core.ledger, self._core.queue))

    async def pause(self, model: str, *, for_s: float | None = None) -> int | None:
        """Let no worker take another job of a model. Returns when that ends."""
        return await self._run(pause_queue(self._core.settings.tenant, model, for_s))

    async def resume(self, model: str) -> bool:
        """Let workers take jobs of a model again. Returns whether it was paused."""
        return await self._run(resume_queue(self._core.settings.tenant, model))

    async def drain(self, worker: str, *, for_s: float | None = None) -> int | None:
        """Let one worker take no more of this tenant's jobs. Returns when that ends."""
        return await self._run(drain_worker(self._core.settings.tenant, worker, for_s))

    async def undo_drain(self, worker: str) -> bool:
        """Let a worker take jobs again. Returns whether it was drained."""
        return await self._run(undo_drain(self._core.settings.tenant, worker))

    async def close(self) -> None:
        """Close the connections. Streams under way end with RedisUnavailable."""
        readers = self._readers_by_loop.pop(asyncio.get_running_loop(), None)
        if readers is not None:
            await uninterrupted(_close(readers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, dialogue: Dialogue[T]) -> T:
        return await self._readers().connections.run(dialogue)


async def _close(readers: Readers) -> None:
    await readers.close()
    await readers.connections.close()
