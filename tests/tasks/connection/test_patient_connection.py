"""A call has as long as its bytes take on a slow line, and a short one behind it no longer than ever."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.connect import SLOWEST_BYTES_PER_S, connect, connect_async
from tests.chaos.harness.proxy import FaultProxy

pytestmark = pytest.mark.redis

TIMEOUT_S = 0.5
#: What the line carries in three times the timeout.
LONG = b"a tale " * (SLOWEST_BYTES_PER_S * 3 // 7)
URLS = (
    "redis://h",
    "rediss://h",
    "unix:///r.sock",
    "sentinel://h/0?master=m",
    "sentinels://h/0?master=m",
)


@pytest.fixture
def line(redis_server: EmbeddedRedis) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        proxy.bytes_per_s = 2 * SLOWEST_BYTES_PER_S
        yield proxy


@pytest.mark.parametrize("url", URLS)
def test_every_way_to_redis_is_patient(url: str) -> None:
    for made in (connect(url), connect_async(url)):
        pool = made.connection_pool
        assert pool.connection_class.__name__.startswith("Patient")


def test_a_long_call_has_more_time(line: FaultProxy) -> None:
    with connect(line.url, tries=0, timeout_s=TIMEOUT_S) as redis:
        assert redis.set("tale", LONG)
        assert redis.strlen("tale") == len(LONG)
        pool: Any = redis.connection_pool
        (connection,) = pool._available_connections
        assert connection._sock.gettimeout() == TIMEOUT_S  # that of the short call


def test_a_long_pipeline_has_more_time_also_as_the_first_call(line: FaultProxy) -> None:
    with connect(line.url, tries=0, timeout_s=TIMEOUT_S) as redis:
        pipeline = redis.pipeline()
        for start in range(0, len(LONG), 5000):
            pipeline.append("tale again", LONG[start : start + 5000])
        assert pipeline.execute()[-1] == len(LONG)


async def made(redis: redis.asyncio.Redis) -> Any:
    """The one connection that a client has made."""
    await redis.ping()
    pool: Any = redis.connection_pool
    (connection,) = pool._available_connections
    return connection


def test_a_long_call_has_more_time_in_asyncio(line: FaultProxy) -> None:
    async def calls() -> None:
        async with connect_async(line.url, tries=0) as redis:
            connection = await made(redis)
            connection.socket_timeout = TIMEOUT_S
            assert await redis.set("tale", LONG)
            assert connection.socket_timeout > TIMEOUT_S
            assert await redis.strlen("tale") == len(LONG)
            assert connection.socket_timeout == TIMEOUT_S

    asyncio.run(calls())


def test_a_connection_without_a_timeout_stays_without_one(line: FaultProxy) -> None:
    async def calls() -> None:
        async with connect_async(line.url, tries=0) as redis:
            connection = await made(redis)
            connection.socket_timeout = None
            await connection.send_command("SET", "tale", LONG)
            assert await connection.read_response() == b"OK"
            assert connection.socket_timeout is None

    asyncio.run(calls())
