"""A job's events as the bytes of a stream, with comments while nothing comes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

from llama_herd.errors import HerdError
from llama_herd.tasks.ending import end
from llama_herd.tasks.events import Event
from llama_herd.tasks.gateway.errors import Problem
from llama_herd.tasks.gateway.notes import Notes
from llama_herd.tasks.gateway.sse import HEARTBEAT, sse


async def pump(
    events: AsyncGenerator[list[Event]],
    write: Callable[[Event], Iterator[bytes]],
    notes: Notes,
    *,
    heartbeat_s: float,
    idle: Callable[[], bytes] | None = None,
) -> AsyncGenerator[bytes]:
    """The parts of a stream. An error on the way is its last event, since its status has been sent.

    idle: what to send while nothing comes; empty: a comment, when it is time.
    """
    spoke_s = monotonic()
    async with aclosing(events):
        try:
            async for found in events:
                part = b"".join(piece for event in found for piece in write(event))
                if not part and idle is not None:
                    part = idle()
                if not part and monotonic() - spoke_s >= heartbeat_s / 2:
                    part = HEARTBEAT
                if part:
                    yield part
                    spoke_s = monotonic()
        except HerdError as error:
            yield failure(Problem.of(error), notes)


async def merged(streams: Sequence[AsyncGenerator[list[Event]]]) -> AsyncGenerator[list[Event]]:
    """The events of several jobs as they come, those of each in order; little is read ahead."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for found in only:
                yield found
        return
    come: asyncio.Queue[list[Event] | Exception | None] = asyncio.Queue(maxsize=len(streams))
    reading = [asyncio.create_task(_read(stream, come)) for stream in streams]
    try:
        num_left = len(streams)
        while num_left:
            match await come.get():
                case None:
                    num_left -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        await end(*reading)


async def _read(
    stream: AsyncGenerator[list[Event]], come: "asyncio.Queue[list[Event] | Exception | None]"
) -> None:
    """Put what comes there, and None, or an error, at its end."""
    try:
        async with aclosing(stream):
            async for found in stream:
                await come.put(found)
    except Exception as error:
        await come.put(error)
    else:
        await come.put(None)


def failure(problem: Problem, notes: Notes) -> bytes:
    """A problem as an event. It is noted, too."""
    notes.fail(problem)
    return sse(compact(problem.body), name="error")


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def from_first(events: AsyncGenerator[list[Event]], first: list[Event]) -> AsyncGenerator[list[Event]]:
    """The events again, with those that were taken first."""
    async with aclosing(events):
        yield first
        async for found in events:
            yield found
