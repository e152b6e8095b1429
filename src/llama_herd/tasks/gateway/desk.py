"""One tenant's queue as the gateway sees it, and the connections that all tenants share."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic
from typing import Generic, TypeVar

import redis.asyncio

from llama_herd.errors import NotPermitted, RedisUnavailable
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.follow import Follower
from llama_herd.tasks.client.rounds import rounds_async
from llama_herd.tasks.connection import connect_async, redis_errors
from llama_herd.tasks.events import Event
from llama_herd.tasks.gateway.errors import not_permitted
from llama_herd.tasks.gateway.hub import Hub
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async

T = TypeVar("T")

#: Most calls to Redis that are under way at a time. More wait here, not as connections of Redis.
MAX_CALLS = 64
#: Events that are read together: what a slow reader costs.
PAGE = 64
#: How long a stream waits for a Redis that is away, and how often it asks.
OUTAGE_S, RETRY_S = 60.0, 0.5
#: How long what was seen of the herd is taken for true.
FRESH_S = 1.0
#: Most jobs of a kind that are shown together.
MAX_JOBS = 20


class Line:
    """The connections to Redis: some for calls, and one for all subscriptions."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.url = settings.redis_url
        self._redis: redis.asyncio.Redis = connect_async(self.url)
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self.hub = Hub(self._redis)

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises RedisUnavailable, and what the dialogue raises."""
        async with self._calls:
            with redis_errors(self.url):
                return await run_dialogue_async(self._redis, dialogue)

    async def close(self) -> None:
        await self._redis.aclose()


class Kept(Generic[T]):
    """What was found a moment ago: asked again when it is older than that, by one for all who wait."""

    def __init__(self, find: Callable[[], Awaitable[T]]) -> None:
        self._find = find
        self._asking = asyncio.Lock()
        self._found: T | None = None
        self._found_s = float("-inf")

    async def __call__(self) -> T:
        async with self._asking:
            if self._found is None or monotonic() - self._found_s > FRESH_S:
                self._found = await self._find()
                self._found_s = monotonic()
            return self._found


class Desk:
    """One tenant's jobs."""

    def __init__(self, settings: GatewaySettings, tenant: str, line: Line) -> None:
        self.settings = settings.model_copy(update={"tenant": tenant})
        self.core = ClientCore(self.settings)
        self._line = line
        #: All live workers, and the whole tenant, as of a second ago at most, however many look.
        self.workers = Kept(lambda: self.run(self.core.workers()))
        self.glance = Kept(lambda: self.run(self.core.glance(MAX_JOBS)))

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue. Raises Problem if the gateway may not do that, and what `Line` raises."""
        try:
            return await self._line.run(dialogue)
        except NotPermitted as error:
            raise not_permitted(error, f"serve the tenant {self.settings.tenant}") from None

    async def submit(
        self, job: GenerationJob, job_id: str | None, key: str | None, traceparent: str | None
    ) -> str:
        """Put a job into its queue, and return its id. Raises what `run` and `Client.submit` do."""
        try:
            return (await self._line.run(self.core.submit(job, {}, job_id, key, traceparent))).job_id
        except NotPermitted as error:
            model, tenant = job.model or self.settings.default_model, self.settings.tenant
            what = f"take jobs for the model {model} of the tenant {tenant}"
            raise not_permitted(error, what, "model") from None

    async def models(self) -> list[str]:
        """Names of the models that jobs are taken for."""
        served = {worker.model for worker in await self.workers()}
        return sorted(served.union(self.settings.standing_models))

    async def events(
        self, job_id: str, *, after: int = 0, tick_s: float = 5.0
    ) -> AsyncGenerator[list[Event]]:
        """The job's events after number `after`, in order, each once, up to its end.

        After `tick_s` without one the list is empty, and at once if none is there yet. An outage of Redis is
        waited out. Raises JobNotFound, RecordUnreadable, and RedisUnavailable after a long outage.
        """
        follower = Follower(job_id, after=after, waits=False, silence_s=tick_s)
        read = PatientRead(lambda: self.run(self.core.catch_up(follower, PAGE)))
        async with (
            self._line.hub.listening(self.core.ledger.channel(job_id)) as inbox,
            aclosing(rounds_async(follower, inbox.take, read)) as found,
        ):
            async for events in found:
                yield events

    async def all_events(self, job_id: str) -> list[Event]:
        """The job's events once it has ended. Raises what `events` does."""
        return [event async for found in self.events(job_id) for event in found]


class PatientRead:
    """Reads one job's stream; while Redis is away it finds nothing, after a pause."""

    def __init__(self, read: Callable[[], Awaitable[list[Event]]]) -> None:
        self._read = read
        self._away_s: float | None = None

    async def __call__(self) -> list[Event]:
        """The new events. Raises RedisUnavailable after a long outage, and what the read raises."""
        try:
            events = await self._read()
        except RedisUnavailable:
            self._away_s = self._away_s or monotonic()
            if monotonic() - self._away_s > OUTAGE_S:
                raise
            await asyncio.sleep(RETRY_S)
            return []
        self._away_s = None
        return events


class Desks:
    """A desk for each tenant, made when somebody comes for it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.line = Line(settings)
        self._desks: dict[str, Desk] = {}

    def of(self, tenant: str) -> Desk:
        if tenant not in self._desks:
            self._desks[tenant] = Desk(self.settings, tenant, self.line)
        return self._desks[tenant]
