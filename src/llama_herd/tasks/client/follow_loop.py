"""The loop of every subscriber of a job: listen to its channel, and read its stream where that is not enough.

`Follower` decides which of the two. Here is the loop around it, for threads and for asyncio. The clients and
the gateway bring a function to listen and one to read.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

from llama_herd.tasks.client.follower import Follower
from llama_herd.tasks.protocol.events import Event

#: Messages of the channel, perhaps none; None if some may be missing.
Heard = Sequence[bytes] | None


def follow(
    follower: Follower, listen: Callable[[float], Heard], read: Callable[[], list[Event]]
) -> Generator[list[Event]]:
    """The events of a job as they come, up to its end; an empty list after a silence."""
    while not follower.has_ended:
        events = [] if follower.is_behind else follower.heard(listen(follower.wait_s()))
        if follower.is_behind:
            events += read()
        if events or not follower.has_ended:
            yield events


async def follow_async(
    follower: Follower,
    listen: Callable[[float], Awaitable[Heard]],
    read: Callable[[], Awaitable[list[Event]]],
) -> AsyncGenerator[list[Event]]:
    """`follow` for asyncio."""
    while not follower.has_ended:
        events = [] if follower.is_behind else follower.heard(await listen(follower.wait_s()))
        if follower.is_behind:
            events += await read()
        if events or not follower.has_ended:
            yield events


def channel_messages(message: Mapping[str, Any] | None) -> Heard:
    """The channel's messages in what redis-py has heard; None: nothing came, or some may be missing.

    After a confirmed subscription, also after a reconnection, something may be missing, as after a silence.
    """
    return None if message is None or message["type"] != "message" else (message["data"],)
