"""Our own endpoints: a job, its state, its events as they come, and its end."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import InvalidJob, JobNotFound
from llama_herd.tasks.client.reader import Reader
from llama_herd.tasks.client.waiting import Waiting
from llama_herd.tasks.events import Event
from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.door import Door, door_of
from llama_herd.tasks.gateway.errors import Problem, bad_request
from llama_herd.tasks.gateway.notes import Notes, notes_of, traceparent_of
from llama_herd.tasks.gateway.openai_routes import JOB_HEADER, KEY_HEADER
from llama_herd.tasks.gateway.pump import pump
from llama_herd.tasks.gateway.sse import HEADERS, EventStream, sse
from llama_herd.tasks.job import GenerationJob, is_job_id
from llama_herd.tasks.ledger.answers import Cancellation, Place, Record
from llama_herd.tasks.result import Result
from llama_herd.tasks.security.api_keys import KeyRole

#: What an EventSource waits before it comes again, in milliseconds.
RECONNECT_MS = 1000
LAST_ID_HEADER = "Last-Event-ID"


class JobView(BaseModel):
    """A job as it is now."""

    id: str = Field(description="Id of the job.")
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(description="Its state.")
    queue: str = Field(description="Its model's queue.")
    worker: str | None = Field(description="The last worker that had it.")
    starts: int = Field(description="How often it was started.")
    num_events: int = Field(description="Number of its last event.")
    num_tokens: int = Field(description="Tokens that are recorded so far.")
    submitted_ms: int = Field(description="When it was accepted, in unix milliseconds.")
    due_ms: int = Field(description="From when it may run.")
    deadline_ms: int | None = Field(description="When it ends with `deadline`; null: never.")
    position: int | None = Field(
        description="Its place among the waiting jobs, from 1; null if it does not wait."
    )
    estimated_wait_s: float | None = Field(
        description="How long it will wait at the recent rate; null if unknown, or if it does not wait."
    )
    result: Result | None = Field(description="Its result; null until it has ended.")

    @classmethod
    def of(cls, job_id: str, record: Record, place: Place | None, result: Result | None) -> "JobView":
        same = ("state", "queue", "worker", "starts", "submitted_ms", "due_ms", "deadline_ms")
        return cls(
            id=job_id,
            num_events=record.seq,
            num_tokens=record.n,
            position=place and place.position,
            estimated_wait_s=place and place.wait_s,
            result=result,
            **{name: getattr(record, name) for name in same},
        )


class Accepted(BaseModel):
    """A job that is in the queue now."""

    id: str = Field(description="Id of the job.")
    events: str = Field(description="Where its events are.")


class Cancelled(BaseModel):
    """The outcome of a request to end a job."""

    id: str = Field(description="Id of the job.")
    cancellation: Cancellation = Field(
        description="cancelled: it has ended. asked: its worker ends it soon. finished: it had ended before."
    )


async def submit(request: Request) -> Response:
    """Put a job into the queue."""
    door = door_of(request)
    caller, desk = await door.admit(request, KeyRole.PRODUCER)
    try:
        job = await door.read(request, caller, lambda body: GenerationJob.parse(body, desk.settings))
        caller.check_priority(job.priority)
        key, traceparent = request.headers.get(KEY_HEADER), traceparent_of(request.headers)
        job_id = await desk.submit(job, None, key, traceparent)
    except InvalidJob as error:
        raise Problem.of(error, bad_status=422) from None
    notes_of(request.scope).job_id = job_id
    place = f"/v1/jobs/{job_id}"
    accepted = Accepted(id=job_id, events=f"{place}/events")
    return JSONResponse(accepted.model_dump(), 202, headers={"Location": place, JOB_HEADER: job_id})


async def show(request: Request) -> Response:
    """A job's state; once it is over, its result."""
    desk, job_id = await _job_of(request, KeyRole.SUBSCRIBER)
    record, place = await desk.run(_look(desk, job_id))
    result = Result.from_events(await desk.all_events(job_id)) if record.is_final else None
    return Response(
        JobView.of(job_id, record, place, result).model_dump_json(), media_type="application/json"
    )


def _look(desk: Desk, job_id: str) -> Any:
    """A dialogue: a job's record and its place. Raises JobNotFound."""
    record, place = yield [desk.core.ledger.record(job_id), desk.core.ledger.place(job_id)]
    if record is None:
        raise JobNotFound.for_id(job_id)
    return record, place


async def events(request: Request) -> ASGIApp:
    """A job's events: those there are, then those that come, up to its end."""
    door = door_of(request)
    desk, job_id = await _job_of(request, KeyRole.SUBSCRIBER)
    after = _after(request)
    record, _ = await desk.run(_look(desk, job_id))
    if record.is_final and after >= record.seq:
        return Response(status_code=204)  # an EventSource that has all of it does not come again
    if request.method == "HEAD":
        return Response(headers={**HEADERS, JOB_HEADER: job_id})
    return _Followed(door, desk, notes_of(request.scope), job_id, after)


class _Followed:
    """The answer: a stream that holds a place."""

    def __init__(self, door: Door, desk: Desk, notes: Notes, job_id: str, after: int) -> None:
        self._door = door
        self._desk = desk
        self._notes = notes
        self._job_id = job_id
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._door.places.taken(self._desk.settings.tenant):
            answer = EventStream(
                self._parts(),
                headers={JOB_HEADER: self._job_id},
                until=self._door.is_closing,
            )
            await answer(scope, receive, send)

    async def _parts(self) -> AsyncGenerator[bytes]:
        heartbeat_s = self._door.settings.gateway_heartbeat_s
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        async with self._desk.reading(self._job_id, after=self._after, asks_place=True) as reader:
            events = self._desk.events_of(reader)
            waiting = _Waiting(self._desk.core.waiting(self._job_id, self._after), reader)
            parts = pump(events, _written, self._notes, heartbeat_s=heartbeat_s, idle=waiting)
            async with aclosing(parts):
                async for part in parts:
                    yield part


def _written(event: Event) -> Iterator[bytes]:
    yield sse(event.to_json(), name=event.type, number=event.seq)


class _Waiting:
    """Says where a job stands, as long as it has not begun."""

    def __init__(self, waiting: Waiting, reader: Reader) -> None:
        self._waiting = waiting
        self._reader = reader

    def __call__(self) -> bytes:
        """An event if the place has changed."""
        told = self._waiting.told((), self._reader.place) if self._reader.is_waiting else ()
        return b"".join(sse(queued.model_dump_json(), name=queued.type) for queued in told)


async def cancel(request: Request) -> Response:
    """End a job early. What it has said is kept."""
    desk, job_id = await _job_of(request, KeyRole.PRODUCER)
    outcome = await desk.run(desk.core.cancel(job_id, "cancelled"))
    if outcome is Cancellation.UNKNOWN:
        raise JobNotFound.for_id(job_id)
    return JSONResponse(Cancelled(id=job_id, cancellation=outcome).model_dump(), 202)


async def purge(request: Request) -> Response:
    """Forget a job: no key of Redis keeps a byte of its prompt and its output."""
    desk, job_id = await _job_of(request, KeyRole.OPERATOR)
    await desk.run(_purge(desk, job_id))
    return Response(status_code=204)


def _purge(desk: Desk, job_id: str) -> Any:
    """A dialogue. Raises JobNotFound if there is no record: nothing is left behind by who guesses ids."""
    if (yield desk.core.ledger.record(job_id)) is None:
        raise JobNotFound.for_id(job_id)
    yield from desk.core.purge(job_id)


async def _job_of(request: Request, needs: KeyRole) -> tuple[Desk, str]:
    """The desk of the caller's tenant, and the id in the path. Another tenant's job is not there."""
    _, desk = await door_of(request).admit(request, needs)
    job_id = request.path_params["id"]
    if not is_job_id(job_id):
        raise JobNotFound("no job has such an id")
    notes_of(request.scope).job_id = job_id
    return desk, job_id


def _after(request: Request) -> int:
    """The number of the last event that the client has seen."""
    said: Mapping[str, str] = request.headers
    text = said.get(LAST_ID_HEADER) or request.query_params.get("after") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise bad_request("must be the number of an event", param=LAST_ID_HEADER)
    return int(text)
