"""OpenAI's endpoints: each request is one job, and each answer names it."""

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import FieldError, HerdError
from llama_herd.tasks.close_names import close_models, did_you_mean
from llama_herd.tasks.events import End, Event
from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.door import Door, door_of
from llama_herd.tasks.gateway.errors import PASSES, Problem, bad_request, not_found
from llama_herd.tasks.gateway.notes import Notes, notes_of, traceparent_of
from llama_herd.tasks.gateway.pump import compact, failure, from_first, pump
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.sse import ClientGone, EventStream, sse, unless_gone
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.openai.answer_schema import Model, ModelList
from llama_herd.tasks.openai.chunks import GOOD_ENDS, Chunks
from llama_herd.tasks.openai.request import CHAT, COMPLETIONS, Endpoint, RequestBody
from llama_herd.tasks.openai.response import response_body
from llama_herd.tasks.result import Result
from llama_herd.tasks.security.api_keys import KeyRole

#: Names the job of an answer.
JOB_HEADER = "X-Job-Id"
#: Says what becomes of the job if the client goes away.
GONE_HEADER = "X-On-Disconnect"
KEY_HEADER = "Idempotency-Key"

#: Nobody watches an answer that is not streamed: its events may be few.
UNWATCHED_MS = 500

DONE = b"data: [DONE]\n\n"
#: What a body says of its stream. The second may only be off.
STREAM_OPTIONS = ("include_usage", "include_obfuscation")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read and checked."""

    endpoint: Endpoint
    job: GenerationJob
    model: str
    is_stream: bool
    has_usage: bool
    key: str | None
    traceparent: str | None
    stays: bool

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        settings: GatewaySettings,
    ) -> Self:
        """Raises InvalidJob with every wrong field, and Problem."""
        errors: list[FieldError] = []
        rest = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        is_stream = _is_stream(body, errors)
        has_usage = _has_usage(body, is_stream, errors)
        found = RequestBody(endpoint, rest)
        found.errors += errors
        job = found.job(settings)
        key = headers.get(KEY_HEADER)
        if not is_stream and not key:  # under a key the same job may be asked for as a stream
            job = job.model_copy(update={"flush_ms": UNWATCHED_MS})
        stays = _stays(headers, "stay" if key else settings.gateway_on_disconnect)
        model, trace = job.model or settings.default_model, traceparent_of(headers)
        return cls(endpoint, job, model, is_stream, has_usage, key, trace, stays)


def _is_stream(body: Mapping[str, Any], errors: list[FieldError]) -> bool:
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        errors.append(FieldError("stream", "must be true or false"))
    return stream is True


def _has_usage(body: Mapping[str, Any], is_stream: bool, errors: list[FieldError]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not is_stream:
        errors.append(FieldError("stream_options", "only with stream=true"))
    if not isinstance(options, dict) or not all(isinstance(value, bool | None) for value in options.values()):
        errors.append(FieldError("stream_options", "must be an object of true and false"))
        return False
    if unknown := [name for name in options if name not in STREAM_OPTIONS]:
        shown = unknown[0] if unknown[0].isidentifier() and len(unknown[0]) <= 64 else "?"
        errors.append(FieldError(f"stream_options.{shown}", "not supported"))
    if options.get("include_obfuscation"):
        errors.append(FieldError("stream_options.include_obfuscation", "only supported as false"))
    return options.get("include_usage") is True


def _stays(headers: Mapping[str, str], default: str) -> bool:
    said = headers.get(GONE_HEADER, default).lower()
    if said not in ("cancel", "stay"):
        raise bad_request("must be cancel or stay", param=GONE_HEADER)
    return said == "stay"


async def _create(endpoint: Endpoint, request: Request) -> "Answer":
    door = door_of(request)
    caller, desk = await door.admit(request, KeyRole.PRODUCER)
    asked = await door.read(
        request, caller, lambda body: Asked.of(endpoint, body, request.headers, desk.settings)
    )
    await _check_model(desk, asked.model)
    return Answer(door, desk, asked, notes_of(request.scope))


async def _check_model(desk: Desk, model: str) -> None:
    """Raise Problem if nobody would take a job for this model."""
    if model in (models := await desk.models()):
        return
    if not models:
        message = "no worker is up"
        raise Problem(503, "no_worker", message, "model", PASSES)
    raise _no_model(model, models)


def _no_model(model: str, models: list[str]) -> Problem:
    served, meant = ", ".join(models) or "none", did_you_mean(close_models(model, models)) or "."
    return not_found(f"no worker serves this model{meant} Served are: {served}", "model_not_found", "model")


class Answer:
    """Submits the job and answers with what it says: at once, or as it comes."""

    def __init__(self, door: Door, desk: Desk, asked: Asked, notes: Notes) -> None:
        self._door = door
        self._desk = desk
        self._asked = asked
        self._notes = notes
        self._heartbeat_s = door.settings.gateway_heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked
        with self._door.places.taken(self._desk.settings.tenant):
            own = None if asked.key else str(uuid.uuid4())
            job_id = await self._desk.submit(asked.job, own, asked.key, asked.traceparent)
            self._notes.job_id = job_id
            try:
                work = self._stream(job_id) if asked.is_stream else self._whole(job_id)
                answer = await unless_gone(receive, work)
            except ClientGone:
                await self._leave(job_id)
                return
            except HerdError as error:
                problem = Problem.of(error)
                problem.headers = {**problem.headers, JOB_HEADER: job_id}
                raise problem from error
            await answer(scope, receive, send)

    async def _whole(self, job_id: str) -> ASGIApp:
        """The answer once the job has ended. Raises Problem if it did not end well."""
        asked = self._asked
        events = await self._desk.all_events(job_id)
        _check_end(events)
        body = response_body(asked.endpoint, job_id, asked.model, Result.from_events(events))
        return JSONResponse(body, headers={JOB_HEADER: job_id})

    async def _stream(self, job_id: str) -> ASGIApp:
        """The answer as it comes. Raises Problem if the job fails before there is anything to say."""
        asked = self._asked
        events = self._desk.events(job_id)
        first = await self._first(events)
        _check_end(first)
        chunks = Chunks(asked.endpoint, job_id, asked.model, has_usage=asked.has_usage)
        write = partial(_written, chunks, self._notes)
        parts = pump(from_first(events, first), write, self._notes, heartbeat_s=self._heartbeat_s)
        return EventStream(
            parts,
            headers={JOB_HEADER: job_id},
            on_gone=partial(self._leave, job_id),
        )

    async def _first(self, events: AsyncGenerator[list[Event]]) -> list[Event]:
        """The first events, or none if nothing has come for so long that the client should hear of us."""
        until_s = monotonic() + self._heartbeat_s
        async for found in events:
            if found or monotonic() >= until_s:
                return found
        return []

    async def _leave(self, job_id: str) -> None:
        if not self._asked.stays:
            self._door.leave(self._desk, job_id)


def _check_end(events: list[Event]) -> None:
    """Raise Problem if the last of these events is an end that is no answer."""
    if events and isinstance(end := events[-1], End) and end.finish_reason not in GOOD_ENDS:
        raise Problem.of_end(end)


def _written(chunks: Chunks, notes: Notes, event: Event) -> Iterator[bytes]:
    """An event as chunks. Each has the event's number, from which the job's own events can be read on."""
    for chunk in chunks.of(event):
        yield sse(compact(chunk), number=event.seq)
    if isinstance(event, End):
        yield DONE if event.finish_reason in GOOD_ENDS else failure(Problem.of_end(event), notes)


async def completions(request: Request) -> Answer:
    """Continue a text."""
    return await _create(COMPLETIONS, request)


async def chat_completions(request: Request) -> Answer:
    """Answer in a conversation."""
    return await _create(CHAT, request)


async def models(request: Request) -> Response:
    """The models that jobs are taken for."""
    _, desk = await door_of(request).admit(request, KeyRole.SUBSCRIBER)
    found = ModelList(data=tuple(Model(id=name) for name in await desk.models()))
    return JSONResponse(found.model_dump())


async def model(request: Request) -> Response:
    """One of the models."""
    _, desk = await door_of(request).admit(request, KeyRole.SUBSCRIBER)
    name, names = request.path_params["model"], await desk.models()
    if name not in names:
        raise _no_model(name, names)
    return JSONResponse(Model(id=name).model_dump())
