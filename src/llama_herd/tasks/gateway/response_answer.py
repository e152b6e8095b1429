"""The answer of the Responses API: at once, at its end, or as it comes; now, or read again later."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from time import time
from typing import Any

from starlette.types import ASGIApp

from llama_herd.tasks.client.readers import Reader
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import (
    CompletionAnswer,
    check_end,
    is_bad_end,
    job_headers,
)
from llama_herd.tasks.gateway.long_answers import WholeAnswer, is_long, make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_log import RequestFacts
from llama_herd.tasks.gateway.response_request import ResponseRequest
from llama_herd.tasks.gateway.sse import prepend, sse, stream_body
from llama_herd.tasks.openai.responses.answer import ResponseFrame
from llama_herd.tasks.openai.responses.events import ResponseEvents
from llama_herd.tasks.protocol.events import End, Event
from llama_herd.tasks.protocol.json_values import json_pieces
from llama_herd.tasks.protocol.result import Result

#: Scores of an answer whose end, which tells all of them again, is still written on the spot.
_FEW = 64


class ResponseAnswer(CompletionAnswer):
    """The ASGI app that submits the job, and answers with the object of the Responses API, or its events."""

    def __init__(self, call: Call, request: ResponseRequest) -> None:
        super().__init__(call, request)
        self._is_background = request.is_background
        self._frame = ResponseFrame(self._ids[0], request.model, int(time()), request.asked)

    @property
    def _heard(self) -> Sequence[str]:
        """None for who does not wait."""
        return () if self._is_background and not self._request.is_stream else super()._heard

    async def _whole(self, readers: Mapping[str, Reader]) -> ASGIApp:
        if self._is_background:
            return whole_answer(self._frame, [])
        events = await self._client.all_events(self._ids[0], readers[self._ids[0]])
        check_end(events, self._request.source(0))
        return await make_aside(lambda: whole_answer(self._frame, events))

    async def _first(self, events: AsyncGenerator[list[Event]]) -> list[Event]:
        """None for who wants to know the answer's id at once."""
        return [] if self._is_background else await super()._first(events)

    def _parts(self, events: AsyncGenerator[list[Event]]) -> AsyncGenerator[bytes]:
        return response_parts(self._frame, events, self._facts, self._heartbeat_s)


def whole_answer(frame: ResponseFrame, events: list[Event]) -> WholeAnswer:
    """The answer of a job with these events, as it is given whole; none: it waits."""
    found = frame.whole(Result.from_events(events)) if events else frame.response("queued")
    return WholeAnswer(["".join(json_pieces(found)).encode()], job_headers(frame.job_id))


def response_parts(
    frame: ResponseFrame,
    events: AsyncGenerator[list[Event]],
    facts: RequestFacts,
    heartbeat_s: float,
    after: int = -1,
) -> AsyncGenerator[bytes]:
    """The parts of a stream. events: those of the job, from its first on. after: the last number not told."""
    found = ResponseEvents(frame)

    def write(event: Event) -> Iterator[bytes]:
        yield from _told(found.from_event(event), after)
        if is_bad_end(event):
            facts.fail(Problem.from_end(event, "input"))

    def takes_long(event: Event) -> bool:
        return is_long(event) or (isinstance(event, End) and found.num_scores > _FEW)

    parts = stream_body(events, write, facts, heartbeat_s=heartbeat_s, takes_long=takes_long)
    opening = b"".join(_told(found.opening(), after))
    return prepend(parts, opening) if opening else parts


def _told(events: Iterator[dict[str, Any]], after: int) -> Iterator[bytes]:
    """Events as server-sent ones, but for those that the client has seen."""
    for event in events:
        if event["sequence_number"] > after:
            yield sse("".join(json_pieces(event)), name=event["type"])
