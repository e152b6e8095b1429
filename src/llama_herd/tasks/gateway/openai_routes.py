"""OpenAI's endpoints: each prompt is a job, and each answer names it."""

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Self, TypeGuard

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import FieldError, HerdError, JobConflict
from llama_herd.tasks.client.submission import id_of_key
from llama_herd.tasks.close_names import close_models, did_you_mean
from llama_herd.tasks.events import End, Event
from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.door import Door, door_of
from llama_herd.tasks.gateway.errors import PASSES, Problem, bad_request, not_found
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.notes import Notes, notes_of, traceparent_of
from llama_herd.tasks.gateway.pump import compact, failure, from_first, merged, pump
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.sse import ClientGone, EventStream, sse, unless_gone
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.openai.answer_schema import Model, ModelList
from llama_herd.tasks.openai.chunks import GOOD_ENDS
from llama_herd.tasks.openai.many_prompts import ManyChunks, job_ids_of, joined_body
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
#: Fields of a body that say how it is answered, and when.
OWN_FIELDS = ("stream", "stream_options", "priority")
#: What a body says of its stream. The second may only be off.
STREAM_OPTIONS = ("include_usage", "include_obfuscation")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read and checked."""

    endpoint: Endpoint
    jobs: tuple[GenerationJob, ...]  # one for each prompt
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
        caller: Caller,
    ) -> Self:
        """Read a request. Raises InvalidJob with every wrong field, and Problem."""
        errors: list[FieldError] = []
        rest = {name: value for name, value in body.items() if name not in OWN_FIELDS}
        is_stream = _is_stream(body, errors)
        has_usage = _has_usage(body, is_stream, errors)
        found = RequestBody(endpoint, rest)
        found.errors += errors
        if body.get("priority") is not None:
            found.fields["priority"] = body["priority"]
        jobs = found.jobs(settings, settings.gateway_max_prompts)
        caller.check_priority(jobs[0].priority)
        key = headers.get(KEY_HEADER)
        if not is_stream and not key:  # under a key the same job may be asked for as a stream
            jobs = [job.model_copy(update={"flush_ms": UNWATCHED_MS}) for job in jobs]
        stays = _stays(headers, "stay" if key else settings.gateway_on_disconnect)
        model, trace = jobs[0].model or settings.default_model, traceparent_of(headers)
        return cls(endpoint, tuple(jobs), model, is_stream, has_usage, key, trace, stays)

    @property
    def n(self) -> int:
        """The number of outputs of each prompt."""
        return self.jobs[0].sampling.n

    def source(self, number: int) -> str:
        """The place of a job's prompt in the body."""
        if self.endpoint == CHAT:
            return "messages"
        return "prompt" if len(self.jobs) == 1 else f"prompt.{number}"


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
        request, caller, lambda body: Asked.of(endpoint, body, request.headers, desk.settings, caller)
    )
    door.charge(caller, len(asked.jobs) - 1)
    await check_model(desk, asked.model)
    return Answer(door, desk, asked, notes_of(request.scope))


async def check_model(desk: Desk, model: str) -> None:
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
    """Submits the jobs and answers with what they say: at once, or as it comes."""

    def __init__(self, door: Door, desk: Desk, asked: Asked, notes: Notes) -> None:
        self._door = door
        self._desk = desk
        self._asked = asked
        self._notes = notes
        self._heartbeat_s = door.settings.gateway_heartbeat_s
        first = str(uuid.uuid4()) if not asked.key else id_of_key(desk.settings.tenant, asked.key)
        self._ids = job_ids_of(first, len(asked.jobs))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked
        num_read = len(self._ids) if asked.is_stream else 1  # the whole of each is read in turn
        with self._door.places.taken(self._desk.settings.tenant, num_read):
            self._notes.job_id = self._ids[0]
            await self._submit()
            try:
                answer = await unless_gone(receive, self._stream() if asked.is_stream else self._whole())
            except ClientGone:
                await self._leave()
                return
            except HerdError as error:
                if len(self._ids) > 1:
                    await self._leave()
                problem = Problem.of(error)
                problem.headers = {**problem.headers, JOB_HEADER: self._ids[0]}
                raise problem from error
            await answer(scope, receive, send)

    async def _submit(self) -> None:
        """Put all jobs into the queue. Raises Problem if one is not taken, and what `Desk.submit` raises."""
        asked = self._asked
        if len(asked.jobs) == 1:
            own = None if asked.key else self._ids[0]
            await self._desk.submit(asked.jobs[0], own, asked.key, asked.traceparent)
            return
        try:
            outcomes = await self._desk.submit_many(
                [
                    {"job": job, "job_id": job_id, "traceparent": asked.traceparent}
                    for job, job_id in zip(asked.jobs, self._ids, strict=True)
                ]
            )
            for number, outcome in enumerate(outcomes):
                if outcome.error is not None:
                    raise _not_taken(outcome.error, asked.source(number))
        except HerdError:
            await self._leave()
            raise

    async def _whole(self) -> ASGIApp:
        """The answer once all jobs have ended. Raises Problem if one did not end well."""
        asked, bodies = self._asked, []
        for number, job_id in enumerate(self._ids):
            events = await self._desk.all_events(job_id)
            check_end(events, asked.source(number))
            result = Result.from_events(events)
            bodies.append(response_body(asked.endpoint, self._ids[0], asked.model, result))
        return JSONResponse(joined_body(bodies), headers={JOB_HEADER: self._ids[0]})

    async def _stream(self) -> ASGIApp:
        """The answer as it comes. Raises Problem if a job fails before there is anything to say."""
        asked = self._asked
        events = self._events()
        try:
            first = await self._first(events)
            for event in first:
                check_end([event], self._source(event))
        except BaseException:
            await events.aclose()
            raise
        chunks = ManyChunks(asked.endpoint, self._ids, asked.model, asked.n, has_usage=asked.has_usage)
        write = partial(self._written, chunks)
        parts = pump(from_first(events, first), write, self._notes, heartbeat_s=self._heartbeat_s)
        return EventStream(parts, headers={JOB_HEADER: self._ids[0]}, on_gone=self._leave)

    async def _events(self) -> AsyncGenerator[list[Event]]:
        """The events of all jobs as they come. None comes after an end that is no answer."""
        async with aclosing(merged([self._desk.events(job_id) for job_id in self._ids])) as found:
            async for events in found:
                yield events
                if len(self._ids) > 1 and any(map(_is_bad_end, events)):
                    await self._leave()
                    return

    async def _first(self, events: AsyncGenerator[list[Event]]) -> list[Event]:
        """The first events, or none if nothing has come for so long that the client should hear of us."""
        until_s = monotonic() + self._heartbeat_s
        async for found in events:
            if found or monotonic() >= until_s:
                return found
        return []

    def _written(self, chunks: ManyChunks, event: Event) -> Iterator[bytes]:
        """An event as chunks. Those of a single job have its number, from which its own events go on."""
        number = event.seq if len(self._ids) == 1 else None
        for chunk in chunks.of(event):
            yield sse(compact(chunk), number=number)
        if _is_bad_end(event):
            yield failure(Problem.of_end(event, self._source(event)), self._notes)
        elif chunks.is_over:
            yield DONE

    def _source(self, event: Event) -> str:
        return self._asked.source(self._ids.index(event.job))

    async def _leave(self) -> None:
        if not self._asked.stays:
            self._door.leave(self._desk, *self._ids)


def _not_taken(error: HerdError, source: str) -> Problem:
    """Why a request of several prompts is not answered."""
    problem = Problem.of(error)
    if isinstance(error, JobConflict):
        problem.message = "another job has this Idempotency-Key. Fix: send the same prompts, or another key"
    problem.param = problem.param or source
    return problem


def check_end(events: list[Event], source: str) -> None:
    """Raise Problem if the last of these events is an end that is no answer.

    source: where the request has its prompt.
    """
    if events and _is_bad_end(end := events[-1]):
        raise Problem.of_end(end, source)


def _is_bad_end(event: Event) -> TypeGuard[End]:
    return isinstance(event, End) and event.finish_reason not in GOOD_ENDS


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
    """Answer with one of the models."""
    _, desk = await door_of(request).admit(request, KeyRole.SUBSCRIBER)
    name, names = request.path_params["model"], await desk.models()
    if name not in names:
        raise _no_model(name, names)
    return JSONResponse(Model(id=name).model_dump())
