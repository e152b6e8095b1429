"""Addresses of Redis: every form, one meaning, and no secret shown."""

import asyncio
import re
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from llama_herd.errors import RedisUnavailable, SettingsError
from llama_herd.tasks.connection.connect import connect, connect_async, redis_errors
from llama_herd.tasks.connection.redis_url import celery_url, checked_url, is_same_redis, masked

URL = "redis://me:hunter2@host:6380/1"


@pytest.mark.parametrize(
    ("url", "for_redis", "for_celery"),
    [
        (URL, URL, URL),
        ("rediss://h", "rediss://h", "rediss://h"),
        ("unix:///r.sock?db=2", "unix:///r.sock?db=2", "redis+socket:///r.sock?virtual_host=2"),
        (
            "redis+socket:///r.sock?virtual_host=2",
            "unix:///r.sock?db=2",
            "redis+socket:///r.sock?virtual_host=2",
        ),
        ("unix:///r.sock", "unix:///r.sock", "redis+socket:///r.sock"),
        (
            "unix:///r.sock?password=%40+2&username=me",
            "unix://me:%40%202@/r.sock",
            "redis+socket://me:%40%202@/r.sock",
        ),
        ("redis://h?db=2", "redis://h/2", "redis://h/2"),
        ("redis://me:hunter;2@h", "redis://me:hunter%3B2@h", "redis://me:hunter%3B2@h"),
        (
            "rediss://h/0?ssl_cert_reqs=CERT_NONE&db=3",
            "rediss://h/3?ssl_cert_reqs=none",
            "rediss://h/3?ssl_cert_reqs=none",
        ),
    ],
)
def test_one_address_serves_redis_py_and_celery(url: str, for_redis: str, for_celery: str) -> None:
    for around in ("", " ", "\n", "\r\n", "\t "):  # as files and lines of .env leave it
        assert checked_url(f"{url}{around}") == checked_url(f"{around}{url}") == for_redis
        assert celery_url(f"{around}{url}{around}") == for_celery
        assert is_same_redis(f"{url}{around}", for_redis)
        connect(f"{url}{around}").close()
    assert is_same_redis(for_redis, for_celery)


#: A password whose / ? # are not written as %2F %3F %23, and hosts that no name server could be asked for.
TORN_URLS = (
    "redis://:hunt/er2@h",
    "redis://:hunt?er2@h",
    "redis://me:hunt#er2@h:6379/0",
    "redis://a..b/0",
    "unix://",
)


@pytest.mark.parametrize(
    "url", ["", "host:6379", "amqp://me:hunter2@h//", "http://h", "redis://h:port/0", *TORN_URLS]
)
def test_what_is_no_address_of_a_redis_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(SettingsError, match="Fix: write redis://") as caught:
        connect(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("connecting", [connect, connect_async, celery_url])
@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "redis://me:hunter2@h?foo=bar",
            "has the parameter foo, but redis:// takes only db. Fix: leave it out",
        ),
        ("redis://h?foo", "has the parameter foo"),
        ("redis://h?ssl_cert_reqs=none", "has the parameter ssl_cert_reqs"),
        ("redis://h?password=hunter2", "has the parameter password"),
        ("redis://h?retry=3", "has the parameter retry"),
        ("redis://h?hunter+2=3", "has an unknown parameter"),
        ("unix:///r.sock?foo=1", "has the parameter foo, but unix:// takes only db, username, password"),
        ("redis+socket:///r.sock?foo=1", "has the parameter foo"),
        ("rediss://h?ssl_cert_reqs=hunter2", "ssl_cert_reqs must be one of none, optional, required"),
        ("redis://h?db=x", "the database must be a whole number"),
        ("redis://h/x", "the database must be a whole number"),
        ("redis://h/-1", "the database must be a whole number"),
        ("redis://h/1/2", "the database must be a whole number"),
        ("unix:///r.sock?db=x", "the database must be a whole number"),
    ],
)
def test_what_a_url_asks_for_besides_is_refused_by_name(
    connecting: Callable[[str], object], query: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)) as caught:
        connecting(query)
    assert str(caught.value).startswith("HERD_REDIS_URL: ")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        "redis://me:hunter2@host:6380/2",
        "redis://me:hunter2@host:6379/1",
        "redis://me:hunter2@other:6380/1",
        "redis://you:hunter2@host:6380/1",
        "redis://host:6380/1",
        "amqp://host",
    ],
)
def test_another_database_host_or_user_is_another_redis(other: str) -> None:
    assert is_same_redis(URL, URL)
    assert not is_same_redis(URL, other)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "redis://me:***@host:6380/1"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("redis://host/0?password=hunter2", "redis://host/0"),
        ("unix:///r.sock?password=hunter2", "unix:///r.sock"),
        ("redis://[hunter2", "(not a URL)"),
        ("redis://hunter2@host", "redis://***@host"),
        ("redis://hunter2:@host", "redis://***@host"),
        *((url, "(not a URL)") for url in TORN_URLS[:3]),
    ],
)
def test_what_is_shown_of_an_address_holds_no_secret(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionError("x"), "cannot be reached"),
        (TimeoutError("x"), "does not answer"),
        (AuthenticationError("x"), "rejects the user or the password"),
        (NoPermissionError("x"), "does not let this user do that"),
        (OutOfMemoryError("x"), "is full"),
        (ResponseError("@user_script: 70: -OOM command not allowed when used"), "is full"),  # Redis 6.2
        (ResponseError("user_script:73: OOM command not allowed when used"), "is full"),  # Redis 7 and 8
        (ResponseError("WRONGTYPE"), "WRONGTYPE"),
    ],
)
def test_every_error_of_redis_becomes_one_line_at_the_border(error: RedisError, words: str) -> None:
    with pytest.raises(RedisUnavailable, match=words) as caught, redis_errors(URL):
        raise error
    assert "\n" not in str(caught.value)
    assert masked(URL) in str(caught.value)
    assert caught.value.__cause__ is error


#: One more than redis-py allows by itself.
NUM_STREAMS = 101


@pytest.mark.redis
def test_many_streams_may_be_followed_at_once(redis_url: str) -> None:
    with connect(redis_url, tries=0) as redis, ExitStack() as held:
        for _ in range(NUM_STREAMS):
            pubsub = held.enter_context(redis.pubsub())
            pubsub.subscribe("tokens")
        assert redis.publish("tokens", "a tale") == NUM_STREAMS


@pytest.mark.redis
def test_many_streams_may_be_followed_at_once_in_asyncio(redis_url: str) -> None:
    async def follow() -> int:
        async with connect_async(redis_url, tries=0) as redis, AsyncExitStack() as held:
            for _ in range(NUM_STREAMS):
                pubsub = await held.enter_async_context(redis.pubsub())
                await pubsub.subscribe("tokens")
            return int(await redis.publish("tokens", "a tale"))

    assert asyncio.run(follow()) == NUM_STREAMS


@pytest.mark.parametrize(
    ("url", "asks"),
    [
        ("rediss://h", True),
        ("rediss://h?ssl_cert_reqs=CERT_OPTIONAL", True),
        ("rediss://:ssl_cert_reqs=none@h", True),
        ("rediss://h?ssl_cert_reqs=CERT_NONE", False),
    ],
)
def test_the_host_is_compared_unless_no_certificate_is_asked_for(url: str, asks: bool) -> None:
    """Also by redis-py before 6, which does so only if it is asked to."""
    for made in (connect(url), connect_async(url)):
        assert made.connection_pool.connection_kwargs.get("ssl_check_hostname", False) == asks


@pytest.mark.redis
def test_an_idle_connection_is_checked_before_anything_between_forgets_it(redis_url: str) -> None:
    """NATs and balancers do after some minutes, without a word. redis-py before 8 leaves it to the system."""

    async def idle_s() -> int:
        async with connect_async(redis_url) as redis:
            pool: Any = redis.connection_pool
            connection = pool.make_connection()
            await connection.connect()
            own: socket.socket = connection._writer.get_extra_info("socket")
            found = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            await connection.disconnect()
            return found

    with connect(redis_url) as redis:
        pool: Any = redis.connection_pool
        connection = pool.make_connection()
        connection.connect()
        assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        connection.disconnect()
    assert asyncio.run(idle_s()) <= 60
