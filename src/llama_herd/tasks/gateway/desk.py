"""One tenant's queue as the gateway sees it."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from llama_herd.errors import NotPermitted
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.follow import Follower
from llama_herd.tasks.client.line import Line
from llama_herd.tasks.client.lots import JobToSubmit, SubmitOutcome
from llama_herd.tasks.client.patient_read import PatientRead
from llama_herd.tasks.client.reader import Reader
from llama_herd.tasks.client.readers import Readers
from llama_herd.tasks.events import Event
from llama_herd.tasks.gateway.errors import not_permitted
from llama_herd.tasks.gateway.kept import Kept
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.redis_call import Call, Dialogue

T = TypeVar("T")

#: Events that are read together: what a slow reader costs.
PAGE = 64
#: How long a silent stream is left alone at most.
MAX_SILENCE_S = 5.0
#: How long a stream waits for a Redis that is away.
OUTAGE_S = 60.0
#: Most jobs of a kind that are shown together.
MAX_JOBS = 20


class Desk:
    """One tenant's jobs."""

    def __init__(self, settings: GatewaySettings, tenant: str, line: Line) -> None:
        self.settings = settings.model_copy(update={"tenant": tenant})
        self.core = ClientCore(self.settings)
        self._line = line
        silence_s = min(self.settings.gateway_heartbeat_s, MAX_SILENCE_S)
        self._readers = Readers(self.core.ledger, line, silence_s)
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

    async def submit_many(self, jobs: Sequence[JobToSubmit]) -> list[SubmitOutcome]:
        """Put jobs into their queues in one round trip; each has its outcome. Raises what `Line` does."""
        lots = self.core.lots(jobs, len(jobs))
        return [outcome for lot in lots for outcome in (await self._line.run(lots.submit(lot))).outcomes]

    async def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs early."""
        await self._line.run(_all(self.core.ledger.cancel(job_id, "cancelled") for job_id in job_ids))

    async def models(self) -> list[str]:
        """Names of the models that jobs are taken for."""
        served = {worker.model for worker in await self.workers()}
        return sorted(served.union(self.settings.standing_models))

    @asynccontextmanager
    async def reading(
        self, job_id: str, *, after: int = 0, asks_place: bool = False
    ) -> AsyncIterator[Reader]:
        """A reader of a job, from the event after number `after` on."""
        follower = Follower(job_id, after=after, waits=False)
        async with self._readers.reading(
            follower, asks_place=asks_place, tick_s=self.settings.gateway_heartbeat_s
        ) as reader:
            yield reader

    def events_of(self, reader: Reader) -> AsyncGenerator[list[Event]]:
        """The job's events, in order, each once, up to its end.

        Some seconds without one bring an empty list, and so does a start without any. An outage of Redis is
        waited out. Raises JobNotFound, RecordUnreadable, and RedisUnavailable after a long outage.
        """

        def read() -> Awaitable[list[Event]]:
            return self.run(self.core.catch_up(reader.follower, PAGE))

        return reader.rounds(PatientRead(read, OUTAGE_S, is_patient_at_first=True))

    async def events(self, job_id: str) -> AsyncGenerator[list[Event]]:
        """All events of a job as they come: see `events_of`."""
        async with self.reading(job_id) as reader, aclosing(self.events_of(reader)) as found:
            async for events in found:
                yield events

    async def all_events(self, job_id: str) -> list[Event]:
        """The job's events once it has ended. Raises what `events` does."""
        return [event async for found in self.events(job_id) for event in found]

    async def close(self) -> None:
        await self._readers.end()


def _all(calls: Iterable[Call[Any]]) -> Dialogue[list[Any]]:
    """A dialogue of calls in one round trip."""
    answers: list[Any] = yield list(calls)
    return answers


class Desks:
    """A desk for each tenant, made when somebody comes for it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.line = Line(settings.redis_url)
        self._desks: dict[str, Desk] = {}

    def of(self, tenant: str) -> Desk:
        if tenant not in self._desks:
            self._desks[tenant] = Desk(self.settings, tenant, self.line)
        return self._desks[tenant]

    async def close(self) -> None:
        for desk in self._desks.values():
            await desk.close()
        await self.line.close()
