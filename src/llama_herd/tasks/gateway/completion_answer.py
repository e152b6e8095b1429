"""The answer to a request for completions or for a chat: jobs are submitted, and their events are written."""

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import TypeGuard

from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import HerdError, JobConflict, RedisUnavailable
from llama_herd.tasks.client.readers import Reader
from llama_herd.tasks.client.submission import id_of_key
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_request import CompletionRequest
from llama_herd.tasks.gateway.long_answers import WholeAnswer, is_long, make_aside
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.sse import (
    ClientGone,
    EventStream,
    error_event,
    merge_streams,
    prepend,
    sse,
    stream_body,
    unless_gone,
)
from llama_herd.tasks.openai.answer_size import MAX_BYTES
from llama_herd.tasks.openai.chunks import ManyChunks
from llama_herd.tasks.openai.response import JoinedAnswer
from llama_herd.tasks.protocol.events import GOOD_ENDS, End, Event
from llama_herd.tasks.protocol.json_values import json_pieces, json_text
from llama_herd.tasks.protocol.result import Result

#: Names the first job of an answer.
JOB_HEADER = "X-Job-Id"
#: The same for OpenAI's clients: their answers have it as `_request_id`, and their errors as `request_id`.
REQUEST_HEADER = "X-Request-Id"

DONE = b"data: [DONE]\n\n"


def job_headers(job_id: str) -> dict[str, str]:
    return {JOB_HEADER: job_id, REQUEST_HEADER: job_id}


class CompletionAnswer:
    """The ASGI app that submits the jobs, and answers with their outputs: whole, or as they come."""

    def __init__(self, call: Call, request: CompletionRequest) -> None:
        self._context = call.context
        self._client = call.queue
        self._request = request
        self._facts = facts_of(call.scope)
        self._heartbeat_s = self._context.settings.gateway_heartbeat_s
        first = str(uuid.uuid4()) if not request.key else id_of_key(call.caller.tenant, request.key)
        self._ids = [first, *(f"{first}.{number}" for number in range(1, len(request.jobs)))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, heard = self._request, self._heard
        with self._context.concurrency.slots(self._client.settings.tenant, len(heard), request.num_bytes):
            self._facts.job_id = self._ids[0]
            async with self._client.listening(heard, are_new=not request.key) as readers:
                await self._submit()
                try:
                    answering = self._stream(readers) if request.is_stream else self._whole(readers)
                    answer = await unless_gone(receive, answering)
                except ClientGone:
                    await self._abandon()
                    return
                except HerdError as error:
                    if len(self._ids) > 1:
                        await self._abandon()
                    problem = Problem.from_error(error)
                    problem.headers = {**problem.headers, **job_headers(self._ids[0])}
                    raise problem from error
                await answer(scope, receive, send)

    @property
    def _heard(self) -> Sequence[str]:
        """The jobs to listen to from the start: an answer that is given whole reads each in turn."""
        return self._ids if self._request.is_stream else self._ids[:1]

    async def _submit(self) -> None:
        """Put all jobs into the queue. Raises Problem if one is not taken, and other HerdErrors."""
        request = self._request
        if len(request.jobs) == 1:
            own = None if request.key else self._ids[0]
            try:
                await self._client.submit(request.jobs[0], own, request.key, request.traceparent)
            except RedisUnavailable:  # it may be accepted all the same
                await self._take_back()
                raise
            return
        posts = [
            {"job": job, "job_id": job_id, "traceparent": request.traceparent}
            for job, job_id in zip(request.jobs, self._ids, strict=True)
        ]
        # Whether a key is another request's is known by its first job: then none of the others is accepted.
        lots = [posts[:1], posts[1:]] if request.key else [posts]
        try:
            for first, lot in enumerate(lots):
                for number, outcome in enumerate(await self._client.submit_many(lot), first):
                    if outcome.error is not None:
                        raise _not_accepted(outcome.error, request.source(number))
        except HerdError:
            await self._take_back()
            raise

    async def _take_back(self) -> None:
        """Cancel what was accepted of a request that is refused; under a key it may be another request's."""
        if not self._request.key:
            await self._abandon()

    async def _whole(self, readers: Mapping[str, Reader]) -> ASGIApp:
        """The answer once all jobs have ended. Raises Problem if one did not end well."""
        request = self._request
        answer = JoinedAnswer(request.endpoint, self._ids[0], request.model)
        for number, job_id in enumerate(self._ids):
            events = await self._client.all_events(job_id, readers.get(job_id))
            check_end(events, request.source(number))
            add = partial(_add_events, answer, events)
            await make_aside(add) if request.is_long else add()
            if answer.num_bytes > MAX_BYTES:
                fields = "tokens, scores or prompts" if len(self._ids) > 1 else "tokens or scores"
                message = f"the answer has more than {MAX_BYTES} bytes. Fix: ask for fewer {fields} at once"
                raise bad_request(f"{message}, or for a stream", "answer_too_long")
        return WholeAnswer(answer.pieces(), job_headers(self._ids[0]))

    async def _stream(self, readers: Mapping[str, Reader]) -> ASGIApp:
        """The answer as it comes. Raises Problem if a job fails before there is anything to say."""
        events = self._events(readers)
        try:
            first = await self._first(events)
            for event in first:
                check_end([event], self._source(event))
        except BaseException:
            await events.aclose()
            raise
        parts = self._parts(prepend(events, first))
        return EventStream(parts, headers=job_headers(self._ids[0]), on_gone=self._abandon)

    def _parts(self, events: AsyncGenerator[list[Event]]) -> AsyncGenerator[bytes]:
        """The parts of a stream of these events."""
        request = self._request
        chunks = ManyChunks(
            request.endpoint,
            self._ids,
            request.model,
            request.jobs[0].sampling.n,
            has_usage=request.has_usage,
            has_counts=request.has_counts,
        )
        write = partial(self._sse_chunks, chunks)
        return stream_body(events, write, self._facts, heartbeat_s=self._heartbeat_s)

    async def _events(self, readers: Mapping[str, Reader]) -> AsyncGenerator[list[Event]]:
        """The events of all jobs as they come. None comes after an end that is no answer."""
        streams = [self._client.events_of(readers[job_id]) for job_id in self._ids]
        async with aclosing(merge_streams(streams)) as found:
            async for events in found:
                yield events
                if len(self._ids) > 1 and any(map(is_bad_end, events)):
                    await self._abandon()
                    return

    async def _first(self, events: AsyncGenerator[list[Event]]) -> list[Event]:
        """The first events, or none if nothing has come for so long that the client should hear of us."""
        until_s = monotonic() + self._heartbeat_s
        async for found in events:
            if found or monotonic() >= until_s:
                return found
        return []

    def _sse_chunks(self, chunks: ManyChunks, event: Event) -> Iterator[bytes]:
        """An event as chunks. The last of a single job's has its cursor, from which its own events go on."""
        cursor, text = event.cursor if len(self._ids) == 1 else "", ""
        for chunk in chunks.from_event(event):
            if text:
                yield sse(text)
            text = "".join(json_pieces(chunk)) if is_long(event) else json_text(chunk)
        if text:
            yield sse(text, id=cursor)
        if is_bad_end(event):
            yield error_event(Problem.from_end(event, self._source(event)), self._facts)
        elif chunks.is_over:
            yield DONE

    def _source(self, event: Event) -> str:
        return self._request.source(self._ids.index(event.job))

    async def _abandon(self) -> None:
        """Cancel the jobs, unless the request wants them to go on."""
        if not self._request.keeps_jobs:
            self._context.abandon(self._client, *self._ids)


def _add_events(answer: JoinedAnswer, events: list[Event]) -> None:
    answer.add(Result.from_events(events))


def _not_accepted(error: HerdError, source: str) -> Problem:
    """Why a request of several prompts is not answered."""
    problem = Problem.from_error(error)
    if isinstance(error, JobConflict):
        problem.message = "another job has this Idempotency-Key. Fix: send the same prompts, or another key"
    problem.param = problem.param or source
    return problem


def check_end(events: list[Event], source: str, first: int = 0) -> None:
    """Raise Problem if the last of these events is an end that is no answer.

    source: where the request has its prompt. first: how many texts it has before those of the job.
    """
    if events and is_bad_end(end := events[-1]):
        raise Problem.from_end(end, source, first)


def is_bad_end(event: Event) -> TypeGuard[End]:
    """Whether a job has ended with no answer."""
    return isinstance(event, End) and event.finish_reason not in GOOD_ENDS
