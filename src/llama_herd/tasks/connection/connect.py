"""The connection to Redis, and the border at which its errors become ours."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
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
from llama_herd.tasks.connection.patient_connection import patient
from llama_herd.tasks.connection.redis_url import (
    SentinelUrl,
    asks_for_certificate,
    checked_url,
    is_sentinel,
    masked,
)

#: A call without an answer for this long has failed. Redis may have run it all the same. A long call has more
#: time: see `patient`.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: How long a Sentinel may take to say where Redis is: longer than a round trip to another continent.
SENTINEL_TIMEOUT_S = 1.0

#: Tries after the first one, within about a second: a short outage of Redis is no error.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No limit: each call under way needs a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31


def connect(url: str, tries: int = TRIES, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A connection of redis-py. Raises SettingsError if `url` is not the URL of a Redis."""
    made: redis.Redis = _connection(redis.Redis, sentinel.Sentinel, Retry, url, tries, timeout_s)
    return patient(made)


def connect_async(url: str, tries: int = TRIES) -> redis.asyncio.Redis:
    """`connect` for asyncio."""
    kinds = redis.asyncio.Redis, async_sentinel.Sentinel, AsyncRetry
    made: redis.asyncio.Redis = _connection(*kinds, url, tries, SOCKET_TIMEOUT_S)
    return patient(made)


def _connection(kind: Any, sentinels: Any, retry: Any, url: str, tries: int, timeout_s: float) -> Any:
    """kind, sentinels, retry: the classes of redis-py, for threads or for asyncio."""
    url = checked_url(url)
    options: dict[str, Any] = {
        "retry": retry(ExponentialBackoff(cap=0.5, base=0.05), tries),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
        "max_connections": MAX_CONNECTIONS,
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],  # redis-py 6 does so by itself
    }
    if not url.startswith("unix:"):  # redis-py rejects it for a socket file
        options["socket_keepalive"] = True
    if asks_for_certificate(url):
        options["ssl_check_hostname"] = True  # redis-py 6 does so by itself
    if not is_sentinel(url):
        return kind.from_url(url, **options)
    found = SentinelUrl.parse(url)
    asked = {**options_of_sentinels(found), "retry": retry(NoBackoff(), 0)}
    return sentinels(found.hosts, sentinel_kwargs=asked, **found.redis_options).master_for(
        found.master, **options
    )


def options_of_sentinels(found: SentinelUrl) -> dict[str, Any]:
    """redis-py's options for the connections to Sentinels: the next one is asked soon if one is away."""
    once = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    return {**found.sentinel_options, **once, "retry": Retry(NoBackoff(), 0)}


#: What a stream tells whose client is closed.
CLOSED = "the connections to Redis were closed, and with them this stream"


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


@contextmanager
def no_cancel_lost() -> Iterator[None]:
    """Raise CancelledError behind the block if the task was cancelled in it, and the block went on.

    Before Python 3.12 asyncio.wait_for, which redis-py uses, may lose a cancel: its task would not end.
    """
    task = asyncio.current_task()
    num = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > num:
            raise asyncio.CancelledError


async def take_cancel() -> None:
    """Raise CancelledError if the task was cancelled while it ran, as by Ctrl-C, and was not told yet.

    To be awaited before `no_cancel_lost`, which would take that cancel for an old one.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also if the task is cancelled meanwhile; CancelledError comes behind it."""
    task = asyncio.create_task(work)
    with no_cancel_lost():
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        await task
