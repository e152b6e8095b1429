"""The connection to Redis, and the border at which its errors become ours."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis import sentinel
from redis.asyncio import sentinel as async_sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from llama_herd.errors import HerdError, NotPermitted, RedisUnavailable
from llama_herd.tasks.connection.complaint import is_denied, redis_complaint
from llama_herd.tasks.connection.redis_url import SentinelUrl, checked_url, is_sentinel, masked

#: A call without an answer for this long has failed. Redis may have run it all the same.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: How long a Sentinel may take to say where Redis is.
SENTINEL_TIMEOUT_S = 0.5

#: Tries after the first one, within about a second: a short outage of Redis is no error.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No limit: each call under way needs a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31


def connect(url: str, tries: int = TRIES, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A connection of redis-py. Raises SettingsError if `url` is not the URL of a Redis."""
    url, retry = checked_url(url), Retry(_backoff(), tries)
    if is_sentinel(url):
        found = SentinelUrl.parse(url)
        sentinels = sentinel.Sentinel(
            found.hosts, sentinel_kwargs=options_of_sentinels(found), **found.redis_options
        )  # type: ignore[no-untyped-call]
        primary: redis.Redis = sentinels.master_for(  # type: ignore[no-untyped-call]
            found.master, retry=retry, **_options(url, timeout_s)
        )
        return primary
    return redis.Redis.from_url(url, retry=retry, **_options(url, timeout_s))


def connect_async(url: str, tries: int = TRIES) -> redis.asyncio.Redis:
    """`connect` for asyncio."""
    url, retry = checked_url(url), AsyncRetry(_backoff(), tries)
    if is_sentinel(url):
        found = SentinelUrl.parse(url)
        asked = {**options_of_sentinels(found), "retry": AsyncRetry(NoBackoff(), 0)}
        sentinels = async_sentinel.Sentinel(found.hosts, sentinel_kwargs=asked, **found.redis_options)  # type: ignore[no-untyped-call]
        primary: redis.asyncio.Redis = sentinels.master_for(found.master, retry=retry, **_options(url))
        return primary
    return redis.asyncio.Redis.from_url(url, retry=retry, **_options(url))


def options_of_sentinels(found: SentinelUrl) -> dict[str, Any]:
    """redis-py's options for the connections to Sentinels: the next one is asked soon if one is away."""
    once = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    return {**found.sentinel_options, **once, "retry": Retry(NoBackoff(), 0)}


def _options(url: str, timeout_s: float = SOCKET_TIMEOUT_S) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
        "max_connections": MAX_CONNECTIONS,
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],  # redis-py 6 does so by itself
    }
    # redis-py rejects this option for a socket file.
    return options if url.startswith("unix:") else {**options, "socket_keepalive": True}


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=0.5, base=0.05)


@contextmanager
def redis_errors(url: str) -> Iterator[None]:
    """Turn redis-py's errors inside into `RedisUnavailable` or `NotPermitted`: the address and the fix."""
    try:
        yield
    except HerdError:  # may be a RedisError too, but says more
        raise
    except RedisError as error:
        raise unavailable(error, url) from error


def unavailable(error: RedisError, url: str) -> RedisUnavailable:
    """An error of redis-py as ours."""
    kind = NotPermitted if is_denied(error) else RedisUnavailable
    is_tls = url.startswith(("rediss:", "sentinels:"))
    return kind(f"Redis at {masked(url)} {redis_complaint(error, is_tls=is_tls)}")


#: Between two cancels of a task.
PATIENCE_S = 0.05


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended. What they raise is dropped.

    Once is not enough: before Python 3.12 asyncio.wait_for, which redis-py uses, may lose a cancel.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=PATIENCE_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()
