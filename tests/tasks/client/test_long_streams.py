"""A long stream is read in pages, as long as the line is fast."""

import asyncio

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import AsyncClient
from llama_herd.tasks.client.follower import LONGEST_PAGE, SHORTEST_PAGE, Follower
from llama_herd.tasks.connection import connect
from llama_herd.tasks.protocol.events import Event
from tests.chaos.harness.proxy import FaultProxy
from tests.tasks.herd import Herd, end, started, token


@pytest.mark.redis
def test_a_long_stream_is_read_over_a_line_that_takes_longer_for_it_than_a_call_may(
    redis: Redis, redis_server: EmbeddedRedis, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "SOCKET_TIMEOUT_S", 0.8)
    many = range(1000)
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    entries = [token("a", i + 2, 50 * i, *range(50)) for i in many] + [end("a", 1002, 50_000)]
    for entry in entries:
        redis.xadd(herd.ledger.events_key("a"), {"e": entry.event}, id=f"{entry.seq}-0")

    async def scene(url: str) -> list[Event]:
        async with AsyncClient(url) as client:
            return [event async for event in client.stream("a")]

    with FaultProxy(redis_server.port) as line:
        line.bytes_per_s = 200_000
        assert sum(len(entry.event) for entry in entries) > line.bytes_per_s
        assert asyncio.run(scene(line.url)) == herd.events("a")


def test_a_page_grows_on_a_fast_line_and_shrinks_on_a_slow_one() -> None:
    follower = Follower("a")
    for _ in range(10):
        follower.note_read(0.01)
    assert follower.page == LONGEST_PAGE
    follower.note_read(1.0)
    assert follower.page == LONGEST_PAGE
    follower.note_read(3.0)
    assert follower.page == LONGEST_PAGE // 2
    for _ in range(10):
        follower.note_read(3.0)
    assert follower.page == SHORTEST_PAGE
