"""Server-sent events: an answer that goes on, to a client that may be slow or gone."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from llama_herd.tasks.connection.connect import cancel_tasks

T = TypeVar("T")

#: A line that readers skip; it shows that the connection is alive. No blank line ends it: OpenAI's clients
#: for Python take one for the end of an event, though it has no data, once an event has had an id.
HEARTBEAT = b":\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # proxies hold nothing back
}


def sse(data: str, *, name: str = "", number: int | None = None) -> bytes:
    """One event. `data` must be one line."""
    head = "" if number is None else f"id: {number}\n"
    kind = f"event: {name}\n" if name else ""
    return f"{head}{kind}data: {data}\n\n".encode()


class ClientGone(Exception):
    """The client has gone away, or was cut off since it did not read."""


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The outcome of `work`. It is cancelled, and ClientGone raised, if the client goes away first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise ClientGone
    finally:
        await cancel_tasks(working, watching)


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
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    if self._until is not None and self._until.is_set():
                        break
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await unless_gone(receive, pass_on())
        except ClientGone:
            if self._on_gone is not None:
                await self._on_gone()
