"""How we reach Redis: one URL for redis-py and for Celery, and errors that a person can act on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry

from llama_herd.errors import HerdError, RedisUnavailable, SettingsError

#: A call that Redis does not answer in time has failed; it may have run.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0

#: A short blink of Redis is not worth an error: three more tries within about a second.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No bound: each stream that is followed holds a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31


def connect(url: str, tries: int = TRIES, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A connection of redis-py. Raises SettingsError when `url` is not that of a Redis."""
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
    # A socket file has no such thing, and redis-py refuses the word.
    return options if url.startswith("unix:") else {**options, "socket_keepalive": True}


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=0.5, base=0.05)


def checked_url(url: str) -> str:
    """`url` in redis-py's form. Raises SettingsError when it is not that of a Redis."""
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        query = [("db" if name == "virtual_host" else name, value) for name, value in parse_qsl(parts.query)]
        url = _joined("unix", parts.netloc, parts.path, query)
    try:
        _parsed(url)
    except ValueError:
        raise SettingsError(
            f"HERD_REDIS_URL is not the URL of a Redis: {masked(url)!r}. "
            "Fix: redis://host:6379/0, rediss://host:6379/0 or unix:///path/redis.sock"
        ) from None
    return url


def complete_url(
    url: str,
    *,
    password: str = "",
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> str:
    """`url` with all that it takes to connect, so that redis-py and both halves of Celery need nothing else.

    What stands in `url` itself comes first, so a second time changes nothing. Raises SettingsError.
    """
    parts = urlsplit(checked_url(url))
    netloc, query = parts.netloc, dict(parse_qsl(parts.query))
    if password and _parsed(url).get("password") is None:
        if parts.scheme == "unix":
            query["password"] = password
        else:
            user, _, place = netloc.rpartition("@")
            netloc = f"{user.removesuffix(':')}:{quote(password, safe='')}@{place}"
    files = {"ssl_ca_certs": ca_file, "ssl_certfile": cert_file, "ssl_keyfile": key_file}
    given = {name: path for name, path in files.items() if path}
    if parts.scheme == "rediss":
        # Celery takes no TLS without a word on certificates.
        query = {"ssl_cert_reqs": "required", **given, **query}
    elif given:
        raise SettingsError(
            f"certificates are for TLS, but HERD_REDIS_URL is {masked(url)}. Fix: write rediss:// for redis://"
        )
    return _joined(parts.scheme, netloc, parts.path, list(query.items()))


def celery_url(url: str) -> str:
    """`url` in Celery's form, which names a socket differently."""
    parts = urlsplit(checked_url(url))
    if parts.scheme != "unix":
        return url
    query = [("virtual_host" if name == "db" else name, value) for name, value in parse_qsl(parts.query)]
    return _joined("redis+socket", parts.netloc, parts.path, query)


def is_same_redis(one: str, other: str) -> bool:
    """Whether two URLs name the same database of the same Redis, whatever their form."""
    try:
        return _database(one) == _database(other)
    except (SettingsError, ValueError):
        return False


def _database(url: str) -> tuple[Any, ...]:
    found = _parsed(checked_url(url))
    place = found.get("path") or (found.get("host", "localhost"), found.get("port", 6379))
    return (place, found.get("db", 0), found.get("username"), found.get("password"))


def _parsed(url: str) -> dict[str, Any]:
    return dict(parse_url(url))  # type: ignore[no-untyped-call]


def masked(url: str) -> str:
    """`url` without its secrets, to be shown."""
    try:
        parts = urlsplit(url)
        user, at, place = parts.netloc.rpartition("@")
    except ValueError:
        return "(not a URL)"
    name = user.partition(":")[0]
    netloc = f"{name}:***{at}{place}" if at else place
    return _joined(parts.scheme, netloc, parts.path, [])


def _joined(scheme: str, netloc: str, path: str, query: list[tuple[str, str]]) -> str:
    """A URL with its two slashes, which urlunsplit leaves out when there is no host."""
    return f"{scheme}://{netloc}{path}" + (f"?{urlencode(query)}" if query else "")


@contextmanager
def redis_errors(url: str) -> Iterator[None]:
    """Turn what redis-py raises inside into `RedisUnavailable`: one line with the address and the fix."""
    try:
        yield
    except HerdError:  # of an error that is both, ours says more
        raise
    except RedisError as error:
        raise RedisUnavailable(f"Redis at {masked(url)} {_complaint(error)}") from error


def is_full(error: RedisError) -> bool:
    """Whether Redis had no memory left, also when a script met that: Redis 6 says so in its words only."""
    return isinstance(error, OutOfMemoryError) or "-OOM " in str(error)


def _complaint(error: RedisError) -> str:
    match error:
        case AuthenticationError() | NoPermissionError():
            return (
                "refuses our user. Fix: put the user into HERD_REDIS_URL and the password into "
                "HERD_REDIS_PASSWORD, and see what its role may do in docs/security.md"
            )
        case NoScriptError():
            return "lacks our scripts, and our user may not load them. Fix: start a worker, which does"
        case _ if is_full(error):
            return "is full and takes no more jobs. Fix: wait until jobs are done, or raise its maxmemory"
        case _ if "MISCONF " in str(error):
            return "cannot write to its disk and takes no more jobs. Fix: make room there"
        case TimeoutError():
            return "does not answer. Fix: check that it is up and that HERD_REDIS_URL names it"
        case redis.ConnectionError():
            return "cannot be reached. Fix: start it, or set HERD_REDIS_URL to where it runs"
        case _:
            return f"answers with an error: {error}"
