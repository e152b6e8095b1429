"""The connection to Redis, and the border at which its errors become ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from llama_herd.errors import HerdError, NotPermitted, RedisUnavailable
from llama_herd.tasks.complaint import complaint_of, is_denied
from llama_herd.tasks.redis_url import checked_url, masked

#: A call without an answer for this long has failed. Redis may have run it all the same.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0

#: Tries after the first one, within about a second: a short outage of Redis is no error.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No limit: each followed stream needs a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31


def connect(url: str, tries: int = TRIES, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A connection of redis-py. Raises SettingsError if `url` is not the URL of a Redis."""
    url = checked_url(url)
    return redis.Redis.from_url(url, retry=Retry(_backoff(), tries), **_options(url, timeout_s))


def connect_async(url: str, tries: int = TRIES) -> redis.asyncio.Redis:
    """`connect` for asyncio."""
    url = checked_url(url)
    return redis.asyncio.Redis.from_url(url, retry=AsyncRetry(_backoff(), tries), **_options(url))


def _options(url: str, timeout_s: float = SOCKET_TIMEOUT_S) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
        "max_connections": MAX_CONNECTIONS,
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
        lacks_right = is_denied(error) and not isinstance(error, AuthenticationError)
        kind = NotPermitted if lacks_right else RedisUnavailable
        raise kind(f"Redis at {masked(url)} {complaint_of(error)}") from error
