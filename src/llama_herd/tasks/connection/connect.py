"""The connection to Redis, and the border at which its errors become ours."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
import redis.asyncio
from redis import sentinel
from redis.asyncio import sentinel as async_sentinel
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from llama_herd.errors import HerdError, NotPermitted, RedisUnavailable
from llama_herd.tasks.connection.complaint import is_denied, redis_complaint
from llama_herd.tasks.connection.redis_url import (
    SentinelUrl,
    asks_for_certificate,
    checked_url,
    is_sentinel,
    is_socket,
    masked,
)

#: A call without an answer for this long has failed. Redis may have run it all the same. A long call has more
#: time: see `_Patience`.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: A line that carries less in a second counts as dead.
SLOWEST_BYTES_PER_S = 20_000
#: How long a Sentinel may take to say where Redis is: longer than a round trip to another continent.
SENTINEL_TIMEOUT_S = 1.0

#: An idle connection is checked after 30 s, and is dead after three checks without an answer: NATs and
#: balancers forget one after some minutes without a word, and the system would check after two hours.
_CHECKS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
KEEPALIVE = {getattr(socket, name): value for name, value in _CHECKS.items() if hasattr(socket, name)}

#: Tries after the first one, within about a second: a short outage of Redis is no error.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No limit: each call under way needs a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31


def connect(url: str, tries: int = TRIES, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A connection of redis-py. Raises SettingsError if `url` is not the URL of a Redis."""
    made: redis.Redis = _connection(redis.Redis, sentinel.Sentinel, Retry, url, tries, timeout_s)
    return made


def connect_async(url: str, tries: int = TRIES) -> redis.asyncio.Redis:
    """`connect` for asyncio."""
    kinds = redis.asyncio.Redis, async_sentinel.Sentinel, AsyncRetry
    made: redis.asyncio.Redis = _connection(*kinds, url, tries, SOCKET_TIMEOUT_S)
    return made


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
    if not is_socket(url):  # redis-py rejects it for a socket file
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = KEEPALIVE  # redis-py 8 does so by itself
    if asks_for_certificate(url):
        options["ssl_check_hostname"] = True  # redis-py 6 does so by itself
    if is_sentinel(url):
        found = SentinelUrl.parse(url)
        asked = {**options_of_sentinels(found), "retry": retry(NoBackoff(), 0)}
        those = sentinels(found.hosts, sentinel_kwargs=asked, **found.redis_options)
        made = those.master_for(found.master, **options)
    else:
        made = kind.from_url(url, **options)
    pool = made.connection_pool
    pool.connection_class = _patient_kind(pool.connection_class)
    return made


def options_of_sentinels(found: SentinelUrl) -> dict[str, Any]:
    """redis-py's options for the connections to Sentinels: the next one is asked soon if one is away."""
    once = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    return {**found.sentinel_options, **once, "retry": Retry(NoBackoff(), 0)}


@cache
def _patient_kind(kind: Any) -> Any:
    """A class of redis-py's connections whose timeout grows with what is sent over a slow line."""
    mixin = _AsyncPatience if issubclass(kind, AsyncConnection) else _Patience
    return type(f"Patient{kind.__name__}", (mixin, kind), {})


class _Patience:
    """Adds to the timeout of a call the whole seconds that its bytes may take; its answer has as long."""

    _sock: Any
    socket_timeout: float | None
    _extra_s = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        made: Any = super()
        parts = _parts(command)
        extra_s = _extra_s(parts)
        if (extra_s or self._extra_s) and self.socket_timeout is not None:
            made.send_packed_command([], check_health)  # it connects
            if (sock := self._sock) is not None:  # another thread may close the client
                sock.settimeout(self.socket_timeout + extra_s)
            self._extra_s, check_health = extra_s, False
        made.send_packed_command(parts, check_health)


class _AsyncPatience:
    """`_Patience` for asyncio, where redis-py looks at the attribute each time."""

    socket_timeout: float | None
    _extra_s = 0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        made: Any = super()
        parts = _parts(command)
        extra_s = _extra_s(parts)
        if (extra_s or self._extra_s) and self.socket_timeout is not None:
            await made.send_packed_command([], check_health)  # it connects
            self.socket_timeout += extra_s - self._extra_s
            self._extra_s, check_health = extra_s, False
        await made.send_packed_command(parts, check_health)


def _parts(command: str | bytes | Iterable[bytes]) -> list[bytes]:
    if isinstance(command, str):
        command = command.encode()
    return [command] if isinstance(command, bytes) else list(command)


def _extra_s(parts: list[bytes]) -> int:
    return sum(map(len, parts)) // SLOWEST_BYTES_PER_S


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
