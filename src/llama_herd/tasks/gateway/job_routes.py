"""Our own endpoints: a job, its state, its events as they come, and its end."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import BadInput, InvalidJob, JobNotFound
from llama_herd.tasks.client.arguments import checked_after
from llama_herd.tasks.client.dead_items import body_fields
from llama_herd.tasks.client.job_cancel import JobSelection
from llama_herd.tasks.client.job_list import (
    ActiveState,
    EndedState,
    JobChoice,
    ListedState,
    list_jobs as chosen_jobs,
)
from llama_herd.tasks.client.job_purge import purge_job
from llama_herd.tasks.client.job_status import JobStatus
from llama_herd.tasks.client.place_watch import PlaceWatch
from llama_herd.tasks.client.submission import id_of_retry
from llama_herd.tasks.client.timeline import Moment, timeline
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import job_headers
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.queries import limit_of, notes_of, seconds_of
from llama_herd.tasks.gateway.request_headers import idempotency_key_of, last_seen_of, traceparent_of
from llama_herd.tasks.gateway.request_log import RequestFacts, facts_of
from llama_herd.tasks.gateway.sse import HEADERS, EventStream, sse, stream_body
from llama_herd.tasks.gateway.tenant_client import TenantClient
from llama_herd.tasks.ledger.answers import Cancellation, JobRecord, Place
from llama_herd.tasks.ledger.dead_letters import is_letter_number
from llama_herd.tasks.ledger.left_jobs import read_record
from llama_herd.tasks.ledger.redis_call import both
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES
from llama_herd.tasks.protocol.events import Event, Failure
from llama_herd.tasks.protocol.job import CHAT_FIELDS, SOURCES, is_job_id
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.ranking_job import RANK_SOURCES
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.tasks.security.api_keys import KeyRole


class JobView(BaseModel):
    """A job as it is now."""

    id: str = Field(description="Id of the job.")
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(description="Its state.")
    queue: str = Field(description="Its model's queue.")
    worker: str | None = Field(description="The last worker that had it.")
    attempts: int = Field(description="How often it was started.")
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
    retries: int = Field(description="How often it was put back after an error, to be tried again.")
    retries_left: int | None = Field(description="How often it may be put back again; null: it never was.")
    retry_ms: int | None = Field(description="When it is tried again; null: it does not wait for that.")
    retry_error: Failure | None = Field(description="The error after which it was put back last.")
    ended_ms: int | None = Field(description="When it ended; null until then.")
    retried_as: str | None = Field(
        description="The job that runs this one again, for operators' keys; null: none is known."
    )
    timeline: list[Moment] = Field(description="What became of it, moment by moment.")
    job: dict[str, Any] = Field(
        description="The job as it was accepted; what it asks, notes and of whom, only for operators' keys."
    )
    result: Result | None = Field(description="Its result; null until it has ended.")


#: Fields of a job that tell what it asks, or of whom. Only operators see them here.
ASKED = (*SOURCES, *CHAT_FIELDS, *FORM_FIELDS, *TEXT_SOURCES, *RANK_SOURCES, "metadata", "webhook")


class JobList(BaseModel):
    """A page of jobs."""

    object: Literal["list"] = Field(default="list", description="A list.")
    data: list[JobStatus] = Field(description="The jobs.")
    has_more: bool = Field(
        description="Whether there may be more: `after` the last of these; of jobs that run or wait, by a "
        "higher `limit`."
    )


#: Jobs of a page that does not say how many, and the most.
LIMIT, MAX_LIMIT = 20, 500
#: The states by which they are listed.
LISTED = (*get_args(ActiveState), *get_args(EndedState))


class Accepted(BaseModel):
    """A job that is in the queue now."""

    id: str = Field(description="Id of the job.")
    events: str = Field(description="Where its events are, from the root of the gateway.")


class Retried(Accepted):
    """A job that runs another one again."""

    retry_of: str = Field(description="Id of that job, which has ended.")


class Cleared(BaseModel):
    """A queue without jobs."""

    model: str = Field(description="The model that it is of.")
    cancelled: int = Field(description="How many jobs were ended.")


class Cancelled(BaseModel):
    """The outcome of a request to end a job."""

    id: str = Field(description="Id of the job.")
    cancellation: Cancellation = Field(
        description="cancelled: it has ended. asked: its worker ends it soon. finished: it had ended before."
    )


async def submit_job(call: Call) -> Response:
    """Put a job into the queue."""
    try:
        job = await call.read(lambda body: parse_job(body, call.queue.settings))
        call.caller.check_priority(job.priority)
        key, traceparent = idempotency_key_of(call.headers), traceparent_of(call.headers)
        job_id = await call.queue.submit(job, None, key, traceparent)
    except InvalidJob as error:
        raise Problem.from_error(error, bad_status=422) from None
    facts_of(call.scope).job_id = job_id
    accepted = Accepted(id=job_id, events=f"/v1/jobs/{job_id}/events")
    # Relative to the request's own address, which a proxy may have put below a path.
    headers = {"Location": f"jobs/{job_id}", **job_headers(job_id)}
    return JSONResponse(accepted.model_dump(), 202, headers=headers)


async def list_jobs(call: Call) -> JobList:
    """The jobs in a state: those that run or wait, or those that ended last, the newest of these first."""
    try:
        choice = _choice_of(call)
        found = await call.queue.run(chosen_jobs(call.queue.core.ledger, choice))
    except BadInput as error:
        raise Problem.from_error(error) from None
    return JobList(data=found, has_more=len(found) == choice.limit)


def _choice_of(call: Call) -> JobChoice:
    """Read what is asked for. Raises Problem, BadInput."""
    asked, limit = call.query_params, limit_of(call, LIMIT, MAX_LIMIT)
    state = asked.get("state", "ended")
    if state not in LISTED:
        raise bad_request(f"must be one of {', '.join(LISTED)}", param="state")
    return JobChoice(
        asked.get("model"),
        cast(ListedState, state),
        since_s=seconds_of(call, "since_s"),
        metadata=notes_of(call),
        after=asked.get("after"),
        limit=limit,
    )


async def get_job(call: Call) -> Response:
    """A job's state, and what became of it; at its end, its result."""
    job_id = _job_id_of(call)
    record, place = await call.queue.run(_record_and_place(call.queue, job_id))
    asked, retried_as = await call.queue.run(_body_and_retry(call.queue, job_id))
    events = await call.queue.all_events(job_id) if record.is_final else []
    hidden = () if call.caller.role.may(KeyRole.OPERATOR) else ASKED

    def make() -> str:
        times = ("submitted_ms", "due_ms", "deadline_ms", "ended_ms")
        retries = ("retries", "retries_left", "retry_ms", "retry_error")
        same = ("state", "queue", "worker", "attempts", *times, *retries)
        view = JobView(
            id=job_id,
            num_events=record.seq,
            num_tokens=record.n,
            position=place and place.position,
            estimated_wait_s=place and place.wait_s,
            retried_as=None if hidden else retried_as,
            timeline=timeline(record, events),
            job={name: value for name, value in body_fields(job_id, asked).items() if name not in hidden},
            result=Result.from_events(events) if record.is_final else None,
            **{name: getattr(record, name) for name in same},
        )
        return view.model_dump_json()

    return Response(await make_aside(make), media_type="application/json")


async def _record_and_place(client: TenantClient, job_id: str) -> tuple[JobRecord, Place | None]:
    """A dialogue: a job's record and its place. Raises JobNotFound."""
    record, _ = await read_record(client.core.ledger, job_id)
    if record is None:
        raise JobNotFound.for_id(job_id)
    return record, await client.core.ledger.place(job_id)


async def _body_and_retry(client: TenantClient, job_id: str) -> tuple[bytes | None, str | None]:
    """A dialogue: a job as it was accepted, and the id of the job that runs it again, if there is one."""
    ledger, retry = client.core.ledger, id_of_retry(client.settings.tenant, job_id)
    body, state = await both(ledger.body(job_id), ledger.state(retry))
    return body, retry if state else None


async def stream_events(call: Call) -> ASGIApp:
    """A job's events, recorded ones first, up to its end. 204 if you have seen its end."""
    context, client, job_id = call.context, call.queue, _job_id_of(call)
    after = last_seen_of(call.headers, call.query_params)
    record, _ = await client.run(_record_and_place(client, job_id))
    if record.is_final and await client.run(_has_all(client, job_id, after, record.seq)):
        return Response(status_code=204)  # an EventSource that has all of it does not come again
    if call.method == "HEAD":
        return Response(headers={**HEADERS, **job_headers(job_id)})
    facts = facts_of(call.scope)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.concurrency.slots(client.settings.tenant):
            parts = _event_parts(client, facts, job_id, after)
            stream = EventStream(parts, headers=job_headers(job_id), until=context.is_closing)
            await stream(scope, receive, send)

    return answer


async def _has_all(client: TenantClient, job_id: str, after: str, num_events: int) -> bool:
    """A dialogue: whether who has the events up to `after` has all, and as they are on record."""
    seen, cursor = checked_after(after)
    if cursor is None or seen < num_events:
        return seen >= num_events
    return [event.cursor for event in await client.core.ledger.read(job_id, num_events - 1)] == [cursor]


async def _event_parts(
    client: TenantClient, facts: RequestFacts, job_id: str, after: str
) -> AsyncGenerator[bytes]:
    """The job's events, and between them each new place in the queue, as long as the job has not begun."""
    # An EventSource waits for a second before it comes again. A blank line would make an event of it.
    yield b"retry: 1000\n"
    async with client.reading(job_id, after=after, asks_place=True) as reader:
        places = PlaceWatch(client.core.ledger, job_id, after=after)

        def place_event() -> bytes:
            told = places.changes((), reader.place) if reader.is_waiting else ()
            return b"".join(sse(queued.model_dump_json(), name=queued.type) for queued in told)

        heartbeat_s = client.settings.gateway_heartbeat_s
        events = client.events_of(reader)
        parts = stream_body(events, _sse_event, facts, heartbeat_s=heartbeat_s, idle=place_event)
        async with aclosing(parts):
            async for part in parts:
                yield part


def _sse_event(event: Event) -> Iterator[bytes]:
    """An event of the job as one server-sent event, whose id is its cursor."""
    yield sse(event.to_json(), name=event.type, id=event.cursor)


async def cancel_job(call: Call) -> Cancelled:
    """End a job early. Its text is kept."""
    job_id = _job_id_of(call)
    outcome = await call.queue.run(call.queue.core.ledger.cancel(job_id))
    if outcome is Cancellation.UNKNOWN:
        raise JobNotFound.for_id(job_id)
    return Cancelled(id=job_id, cancellation=outcome)


async def retry_job(call: Call) -> Response:
    """Run a job that has ended again, under a new id. The same again is the same job."""
    job_id = _job_id_of(call)
    if is_letter_number(job_id):
        raise JobNotFound.for_id(job_id)
    new_id, _ = await call.queue.run(call.queue.core.dead.retry(job_id, call.caller.check_priority))
    again = Retried(id=str(new_id), events=f"/v1/jobs/{new_id}/events", retry_of=job_id)
    return JSONResponse(again.model_dump(), 202, headers={"Location": f"../{new_id}"})


async def clear_queue(call: Call) -> Cleared:
    """End all jobs of a model that run or wait. A queue that no worker serves is forgotten then."""
    model = call.path_params["model"]
    ended = await call.queue.run(JobSelection(call.queue.core.ledger, model, None).cancel())
    return Cleared(model=model, cancelled=ended)


async def forget_job(call: Call) -> None:
    """Forget a job that is over, or waits."""
    job_id, core = _job_id_of(call), call.queue.core
    if await call.queue.run(core.ledger.record(job_id)) is None:
        raise JobNotFound.for_id(job_id)  # nothing is left behind by who guesses ids
    await call.queue.run(purge_job(core.ledger, job_id, core.queue))


def _job_id_of(call: Call) -> str:
    """The id in the path. Raises JobNotFound if no job can have it."""
    job_id: str = call.path_params["id"]
    if not is_job_id(job_id):
        raise JobNotFound("no job has such an id")
    facts_of(call.scope).job_id = job_id
    return job_id
