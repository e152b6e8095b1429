"""The subscription that all streams of a process share, and what one of them cannot do to the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client import shared_connections as hubs
from llama_herd.tasks.client.shared_connections import Inbox, SharedConnections, SubscriptionHub
from tests.redis_errors import num_errors

pytestmark = pytest.mark.redis

PATIENCE_S = 20.0


@asynccontextmanager
async def open_hub(url: str) -> AsyncIterator[SubscriptionHub]:
    connections = SharedConnections(url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield connections.hub
    finally:
        await connections.close()


@asynccontextmanager
async def listening(hub: SubscriptionHub, channel: str) -> AsyncIterator[Inbox]:
    inbox = Inbox()
    await hub.join(channel.encode(), inbox)
    try:
        yield inbox
    finally:
        await hub.leave(channel.encode(), inbox)


async def hear(hub: SubscriptionHub, channel: str) -> list[bytes]:
    """The first messages of a channel."""
    async with listening(hub, channel) as inbox:
        while not (messages := await inbox.take(1)):
            pass
    return messages


async def say(redis: Redis, channel: str, hears: asyncio.Task[list[bytes]]) -> list[bytes]:
    """Say something until it is heard: what comes with a confirmation is not kept."""
    while not hears.done():
        redis.publish(channel, "hello")
        await asyncio.sleep(0.01)
    return hears.result()


def test_who_listens_as_the_second_is_told_to_read_what_was_before(redis_url: str) -> None:
    """Redis confirms a channel once."""

    async def scene() -> None:
        async with open_hub(redis_url) as hub, listening(hub, "a") as first:
            assert await first.take(1) is None
            async with listening(hub, "a") as second:
                assert await second.take(1) is None

    asyncio.run(scene())


def test_a_reader_that_goes_before_its_channel_is_asked_for_takes_it_from_nobody(
    redis: Redis, redis_url: str
) -> None:
    async def scene() -> None:
        async with open_hub(redis_url) as hub, listening(hub, "other") as other:
            assert await other.take(1) is None  # it is connected
            async with hub._sending:  # the connection takes no more at the moment
                first = asyncio.create_task(hear(hub, "a"))
                await asyncio.sleep(0)
                second = asyncio.create_task(hear(hub, "a"))
                await asyncio.sleep(0)
                first.cancel()
                await asyncio.wait([first])
            assert (await say(redis, "a", second))[0] == b"hello"

    asyncio.run(scene())


class Proxy:
    """Stands before a Redis. Once it is stuck, it passes nothing on over the connections that it has."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._passing: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        finally:
            server.close()
            self.stick()

    def stick(self) -> None:
        for task in self._passing:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection(self._host, self._port)
        for source, sink in ((reader, to_redis), (from_redis, writer)):
            self._passing.append(asyncio.create_task(self._pass_on(source, sink)))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


def test_a_connection_that_takes_nothing_more_is_given_up(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "PING_S", 0.1)
    monkeypatch.setattr(hubs, "SILENT_S", 1.0)

    async def scene() -> None:
        proxy = Proxy(redis_url)
        async with proxy.open() as url, open_hub(url) as hub, listening(hub, "other") as other:
            assert await other.take(1) is None
            proxy.stick()
            long = [asyncio.create_task(hear(hub, f"{number}" * 500_000)) for number in range(10, 30)]
            hears = asyncio.create_task(hear(hub, "a"))
            assert (await say(redis, "a", hears))[0] == b"hello"
            for task in long:
                task.cancel()
            await asyncio.wait(long)

    asyncio.run(scene())


def test_a_redis_that_cannot_write_to_its_disk_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses each PING, too."""
    monkeypatch.setattr(hubs, "PING_S", 0.02)

    def subscribers(redis: Redis) -> list[str]:
        return [client["id"] for client in redis.client_list(_type="pubsub")]

    async def scene(url: str, redis: Redis) -> None:
        async with open_hub(url) as hub, listening(hub, "a") as inbox:
            assert await inbox.take(1) is None  # it is connected
            before = subscribers(redis)
            Path(str(redis.config_get("dir")["dir"]), "dump.rdb").mkdir()
            redis.config_set("save", "3600 1")
            redis.bgsave()
            while num_errors(redis, "MISCONF") < 10:
                await asyncio.sleep(0.01)
            assert subscribers(redis) == before

    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        asyncio.run(scene(server.url, redis))
