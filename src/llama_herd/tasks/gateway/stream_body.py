"""A job's events as the bytes of a stream, with comments while nothing comes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from time import monotonic

from llama_herd.errors import HerdError
from llama_herd.tasks.connection.connect import cancel_tasks
from llama_herd.tasks.gateway.long_answers import is_long, make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_facts import RequestFacts
from llama_herd.tasks.gateway.sse import HEARTBEAT, sse
from llama_herd.tasks.openai.json_pieces import compact_json
from llama_herd.tasks.protocol.events import Event

#: Longer parts of a body are sent before the next event is written.
PART_BYTES = 16_384


async def stream_body(
    events: AsyncGenerator[list[Event]],
    write: Callable[[Event], Iterator[bytes]],
    facts: RequestFacts,
    *,
    heartbeat_s: float,
    idle: Callable[[], bytes] | None = None,
) -> AsyncGenerator[bytes]:
    """The parts of the body. An error on the way is the last event, since the status has been sent by then.

    idle: what to send while nothing comes; empty: a comment, when it is time.
    """
    spoke_s = monotonic()
    async with aclosing(events):
        try:
            async for found in events:
                part = b""
                for event in found:
                    if is_long(event):  # each of its pieces is sent before the next one is made
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


async def merge_streams(streams: Sequence[AsyncGenerator[list[Event]]]) -> AsyncGenerator[list[Event]]:
    """The events of several jobs as they come, those of each in order; little is read ahead."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for found in only:
                yield found
        return
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
    return sse(compact_json(problem.body), name="error")


async def prepend(events: AsyncGenerator[list[Event]], first: list[Event]) -> AsyncGenerator[list[Event]]:
    """A stream with the events put back that were taken from it first."""
    async with aclosing(events):
        yield first
        async for found in events:
            yield found
