"""The gateway's clients of the queue: one for each tenant, all over the same connections."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from time import monotonic
from typing import Any, Generic, TypeVar

from llama_herd.errors import NotPermitted, StreamRewritten
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.follower import Follower, read_new
from llama_herd.tasks.client.job_status import read_snapshot
from llama_herd.tasks.client.lots import JobToSubmit, Lots, SubmitOutcome
from llama_herd.tasks.client.pausing import paused_queues
from llama_herd.tasks.client.readers import Reader, Readers
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.client.submission import Beside, enqueue, named_job
from llama_herd.tasks.gateway.problem import PASSES, Problem, not_found
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.redis_call import Dialogue, together
from llama_herd.tasks.protocol.close_names import close_models, did_you_mean
from llama_herd.tasks.protocol.events import Event, Token
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.message import model_of

T = TypeVar("T")

#: How long a value that was looked up counts as true.
FRESH_S = 1.0


class CachedValue(Generic[T]):
    """A value that is looked up again once it is older than FRESH_S.

    Concurrent callers share one lookup, and its error: else each would wait for a Redis that is away in turn.
    """

    def __init__(self, look_up: Callable[[], Awaitable[T]]) -> None:
        self._look_up = look_up
        self._found: asyncio.Future[T] | None = None
        self._asked_s = float("-inf")

    async def __call__(self) -> T:
        found = self._found
        if found is None or (found.done() and (_has_failed(found) or monotonic() - self._asked_s > FRESH_S)):
            found = self._found = asyncio.ensure_future(self._look_up())
            self._asked_s = monotonic()
        return await asyncio.shield(found)  # others wait for it, too


def _has_failed(done: asyncio.Future[Any]) -> bool:
    return done.cancelled() or done.exception() is not None


#: Most events of one read: so much waits in memory for a client that reads slowly.
PAGE = 64
#: Most of the first read, and of one after events with scores of many tokens: nothing else runs meanwhile.
SCORED_PAGE = 8
#: How long a job that is to be submitted waits for its subscription.
CONFIRM_S = 0.2
#: Longest time until the stream of a silent job is read again.
MAX_SILENCE_S = 5.0
#: How long a stream waits for a Redis that is away.
OUTAGE_S = 60.0
#: Most jobs of a kind that are shown together.
MAX_JOBS = 20


class TenantClient:
    """Submits, reads and cancels one tenant's jobs for the requests of a gateway."""

    def __init__(self, settings: GatewaySettings, tenant: str, connections: SharedConnections) -> None:
        self.settings = settings.model_copy(update={"tenant": tenant})
        self.core = ClientCore(self.settings)
        self._connections = connections
        silence_s = min(self.settings.gateway_heartbeat_s, MAX_SILENCE_S)
        self._readers = Readers(self.core.ledger, connections, silence_s)
        #: All live workers, the paused queues, and the whole tenant, as of a second ago at most, however many
        #: requests ask.
        self.workers = CachedValue(lambda: self.run(self.core.reports.workers()))
        self.paused = CachedValue(lambda: self.run(paused_queues(tenant)))
        self.snapshot = CachedValue(
            lambda: self.run(read_snapshot(self.core.ledger, self.core.queue, MAX_JOBS))
        )

    async def run(self, dialogue: Dialogue[T], what: str = "", param: str | None = None) -> T:
        """Run a dialogue. Raises Problem if the gateway lacks the right, and what the dialogue raises.

        what, param: what the gateway may not do then, and for which field.
        """
        try:
            return await self._connections.run(dialogue)
        except NotPermitted as error:
            message = (
                f"this gateway may not {what or f'serve the tenant {self.settings.tenant}'}: its user of "
                "Redis lacks the right. Fix: herd acl, see docs/security.md"
            )
            raise Problem(403, "not_permitted", message, param, cause=str(error)) from None

    async def submit(self, job: Job, job_id: str | None, key: str | None, traceparent: str | None) -> str:
        """Put a checked job into its queue, and return its id. Raises what `run` and `Client.submit` do."""
        named = named_job(job, self.settings, Beside(job_id, key, traceparent))
        sent = enqueue(self.core.ledger, named, self.settings)
        model, tenant = job.model or self.settings.default_model, self.settings.tenant
        what = f"take jobs for the model {model} of the tenant {tenant}"
        return (await self.run(sent, what, "model")).job_id

    async def submit_many(self, jobs: Sequence[JobToSubmit]) -> list[SubmitOutcome]:
        """Put the jobs of a request into their queues in one round trip; each has its outcome.

        They are kept as long as if they had come alone. Raises RedisUnavailable.
        """
        lots = Lots(jobs, len(jobs), self.core, is_bulk=False)
        return [outcome for lot in lots for outcome in (await self._connections.run(lots.submit(lot)))[0]]

    async def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs early, all in one round trip."""
        await self._connections.run(together([self.core.ledger.cancel(job_id) for job_id in job_ids]))

    async def purge(self, job_ids: Sequence[str]) -> None:
        """Delete all that Redis has of jobs that have ended."""
        await self._connections.run(together([self.core.ledger.purge(job_id) for job_id in job_ids]))

    async def models(self) -> list[str]:
        """Names of the models that jobs are taken for: they are served, paused, or always known."""
        served = {worker.model for worker in await self.workers()}
        paused = {model_of(queue, self.settings.tenant) for queue in await self.paused()}
        return sorted(served.union(paused, self.settings.standing_models))

    async def only_model(self) -> str:
        """The model of a request that names none: the gateway's own, or else the only one that is served."""
        models = await self.models()
        is_clear = len(models) == 1 and not self.settings.model_name
        return models[0] if is_clear else self.settings.default_model

    async def check_model(self, model: str, *, is_named: bool = True) -> None:
        """Raise Problem if nobody would take a job for this model. is_named: by the request."""
        models = await self.models()
        if not models:
            raise Problem(503, "no_worker", "no worker is up", "model", PASSES)
        if model not in models:
            raise model_not_found(model, models) if is_named else _own_model_not_found(model, models)

    def reading(
        self, job_id: str, *, after: int | str = 0, asks_place: bool = False
    ) -> AbstractAsyncContextManager[Reader]:
        """A reader of a job, from the event after the number or cursor `after` on."""
        follower, tick_s = Follower(job_id, after=after, waits=False), self.settings.gateway_heartbeat_s
        return self._readers.reading(follower, asks_place=asks_place, tick_s=tick_s)

    @asynccontextmanager
    async def listening(
        self, job_ids: Sequence[str], *, are_new: bool = True
    ) -> AsyncIterator[Mapping[str, Reader]]:
        """Readers of jobs that are submitted in the block, by their ids. They hear every event of them.

        If Redis confirms a subscription late, the job's stream is read once it does.
        are_new: nobody can have submitted them before. Else their streams are read in any case.
        """
        async with AsyncExitStack() as block:
            readers = {one: await block.enter_async_context(self.reading(one)) for one in job_ids}
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_S):
                    for reader in readers.values():
                        await reader.inbox.take(CONFIRM_S)
            for reader in readers.values():
                reader.follower.is_behind = not are_new
            yield readers

    def events_of(self, reader: Reader) -> AsyncGenerator[list[Event]]:
        """The job's events, in order, each once, up to its end.

        Some seconds without one bring an empty list, and so does a start without any. An outage of Redis is
        waited out. Raises JobNotFound, RecordUnreadable, and RedisUnavailable after a long outage.
        """
        limit = SCORED_PAGE

        async def read() -> list[Event]:
            nonlocal limit
            found = await self.run(read_new(self.core.ledger, reader.follower, limit))
            has_scores = any(isinstance(event, Token) and event.top_logprobs for event in found)
            limit = SCORED_PAGE if has_scores else PAGE
            return found

        return reader.events(read, OUTAGE_S, is_patient_at_first=True)

    def events(self, job_id: str, reader: Reader | None = None) -> AsyncGenerator[list[Event]]:
        """All events of a job as they come: see `events_of`. reader: one that listens already."""
        return self._all_of(job_id) if reader is None else self.events_of(reader)

    async def _all_of(self, job_id: str) -> AsyncGenerator[list[Event]]:
        async with self.reading(job_id) as reader, aclosing(self.events_of(reader)) as found:
            reader.follower.is_behind = False  # the stream is read once Redis has confirmed the subscription
            async for events in found:
                yield events

    async def all_events(self, job_id: str, reader: Reader | None = None) -> list[Event]:
        """The job's events once it has ended. Raises what `events` does. reader: one that listens already."""
        try:
            return [event async for found in self.events(job_id, reader) for event in found]
        except StreamRewritten:
            return [event async for found in self.events(job_id) for event in found]

    async def close(self) -> None:
        """End this tenant's streams. The connections stay open for other tenants."""
        await self._readers.close()


def model_not_found(model: str, models: list[str]) -> Problem:
    """The problem of a request for a model that is not among those that are served."""
    served, meant = ", ".join(models) or "none", did_you_mean(close_models(model, models)) or "."
    return not_found(f"no worker serves this model{meant} Served are: {served}", "model_not_found", "model")


def _own_model_not_found(model: str, models: list[str]) -> Problem:
    """The same of a request that names no model."""
    message = (
        f"the request names no model, and no worker serves {model}, which this gateway takes then. Served "
        f"are: {', '.join(models)}. Fix: name one of these, or set HERD_MODEL_NAME of the gateway"
    )
    return not_found(message, "model_not_found", "model")
