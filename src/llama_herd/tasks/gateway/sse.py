"""Server-sent events: the events of jobs as an answer that goes on, to a client that may be slow or gone."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from time import monotonic
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from llama_herd.errors import HerdError
from llama_herd.tasks.connection.cancels import cancel_tasks
from llama_herd.tasks.gateway.long_answers import is_long, make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_log import RequestFacts
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.json_values import json_text

T = TypeVar("T")

#: A line that readers skip; it shows that the connection is alive. No blank line ends it: OpenAI's clients
#: for Python take one for the end of an event, though it has no data, once an event has had an id.
HEARTBEAT = b":\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # proxies hold nothing back
}


def sse(data: str, *, name: str = "", id: str = "") -> bytes:
    """One event. `data` must be one line."""
    head = f"id: {id}\n" if id else ""
    kind = f"event: {name}\n" if name else ""
    return f"{head}{kind}data: {data}\n\n".encode()


class ClientGone(Exception):
    """The client has gone away, or was cut off since it did not read."""


class TimeToEnd(Exception):
    """The answer is to end, since its gateway does."""


async def unless_gone(receive: Receive, work: Awaitable[T], until: asyncio.Event | None = None) -> T:
    """The outcome of `work`. It is cancelled, and ClientGone raised, if the client goes away first.

    until: if this is set first, TimeToEnd is raised.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_client_leaves(receive))
    ending = [] if until is None else [asyncio.ensure_future(until.wait())]
    try:
        await asyncio.wait((working, watching, *ending), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise ClientGone if watching.done() else TimeToEnd
    finally:
        await cancel_tasks(working, watching, *ending)


async def _client_leaves(receive: Receive) -> None:
    """Return once the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An ASGI response whose parts come over time; `on_gone` is called if the client does not take all."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        *,
        headers: Mapping[str, str],
        on_gone: Callable[[], Awaitable[None]] | None = None,
        until: asyncio.Event | None = None,
    ) -> None:
        """until: once it is set the answer ends, so that the client goes on elsewhere."""
        self._parts = parts
        self._headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, **headers}.items()]
        self._on_gone = on_gone
        self._until = until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on() -> None:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        try:
            with suppress(TimeToEnd):
                await unless_gone(receive, pass_on(), self._until)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            if self._on_gone is not None:
                await self._on_gone()


#: Longer parts of a body are sent before the next event is written.
PART_BYTES = 16_384


async def stream_body(
    events: AsyncGenerator[list[Event]],
    write: Callable[[Event], Iterator[bytes]],
    facts: RequestFacts,
    *,
    heartbeat_s: float,
    idle: Callable[[], bytes] | None = None,
    takes_long: Callable[[Event], bool] = is_long,
) -> AsyncGenerator[bytes]:
    """The parts of the body. An error on the way is the last event, since the status has been sent by then.

    idle: what to send while nothing comes; empty: a comment, when it is time. takes_long: whether to write
    what an event says takes long.
    """
    spoke_s = monotonic()
    async with aclosing(events):
        try:
            async for found in events:
                part = b""
                for event in found:
                    if takes_long(event):  # each of its pieces is sent before the next one is made
                        pieces = write(event)
                        while piece := await make_aside(partial(next, pieces, b"")):
                            yield part + piece
                            part, spoke_s = b"", monotonic()
                    else:
                        part += b"".join(write(event))
                        if len(part) > PART_BYTES:  # others have their turn
                            yield part
                            part, spoke_s = b"", monotonic()
                            await asyncio.sleep(0)
                if not part and idle is not None:
                    part = idle()
                if not part and monotonic() - spoke_s >= heartbeat_s / 2:
                    part = HEARTBEAT
                if part:
                    yield part
                    spoke_s = monotonic()
        except HerdError as error:
            yield error_event(Problem.from_error(error), facts)


def merge_streams(streams: Sequence[AsyncGenerator[list[Event]]]) -> AsyncGenerator[list[Event]]:
    """The events of several jobs as they come, those of each in order; little is read ahead."""
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[list[Event]]]) -> AsyncGenerator[list[Event]]:
    arrived: asyncio.Queue[list[Event] | Exception | None] = asyncio.Queue(maxsize=len(streams))
    forwarding = [asyncio.create_task(_forward(stream, arrived)) for stream in streams]
    try:
        num_left = len(streams)
        while num_left:
            match await arrived.get():
                case None:
                    num_left -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        await cancel_tasks(*forwarding)


async def _forward(
    stream: AsyncGenerator[list[Event]], arrived: "asyncio.Queue[list[Event] | Exception | None]"
) -> None:
    """Put the events of a stream into the queue as they come; at its end None, or the error that ended it."""
    try:
        async with aclosing(stream):
            async for found in stream:
                await arrived.put(found)
    except Exception as error:
        await arrived.put(error)
    else:
        await arrived.put(None)


def error_event(problem: Problem, facts: RequestFacts) -> bytes:
    """A problem as an event of the stream. The request's log line gets it, too."""
    facts.fail(problem)
    return sse(json_text(problem.body), name="error")


async def prepend(stream: AsyncGenerator[T], first: T) -> AsyncGenerator[T]:
    """A stream with what was taken from it first put back."""
    async with aclosing(stream):
        yield first
        async for found in stream:
            yield found
