"""Rounds: each subscriber of a job listens, and reads the stream where that is not enough.

`Follower` decides; here is the loop around it, for threads and for asyncio. Both clients and the gateway
bring a way to listen and a way to read.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

from llama_herd.tasks.client.follow import Follower
from llama_herd.tasks.events import Event

#: What was published, perhaps nothing; None if some of it may be missing.
Heard = Sequence[bytes] | None


def rounds(
    follower: Follower, listen: Callable[[float], Heard], read: Callable[[], list[Event]]
) -> Generator[list[Event]]:
    """The events as they come, up to the end; an empty list after a silence."""
    while not follower.has_ended:
        events = [] if follower.is_behind else follower.heard(listen(follower.wait_s()))
        if follower.is_behind:
            events += read()
        if events or not follower.has_ended:
            yield events


async def rounds_async(
    follower: Follower,
    listen: Callable[[float], Awaitable[Heard]],
    read: Callable[[], Awaitable[list[Event]]],
) -> AsyncGenerator[list[Event]]:
    """`rounds` for asyncio."""
    while not follower.has_ended:
        events = [] if follower.is_behind else follower.heard(await listen(follower.wait_s()))
        if follower.is_behind:
            events += await read()
        if events or not follower.has_ended:
            yield events


def published(message: Mapping[str, Any] | None) -> Heard:
    """The messages that a message of redis-py brings; None: listening was in vain, or some may be missing.

    After a confirmed subscription, also after a reconnection, something may be missing, as after a silence.
    """
    return None if message is None or message["type"] != "message" else (message["data"],)
