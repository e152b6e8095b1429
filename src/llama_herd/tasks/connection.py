"""The connection to Redis: one URL for redis-py and for Celery, and errors that a person can act on."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from llama_herd.errors import HerdError, NotPermitted, RedisUnavailable, SettingsError

#: A call without an answer for this long has failed. Redis may have run it all the same.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0

#: Tries after the first one, within about a second: a short outage of Redis is no error.
TRIES = 3
#: A subscriber is in no hurry: it waits about ten seconds for Redis to come back.
SUBSCRIBER_TRIES = 20
#: No limit: each followed stream needs a connection, and redis-py would refuse the 101st.
MAX_CONNECTIONS = 2**31

#: Query parameters that a URL may have: redis-py, Celery's broker and its backend read these alike.
PARAMETERS = {
    "redis": ("db",),
    "rediss": ("db", "ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    "unix": ("db", "username", "password"),
}
CERTIFICATE_CHECKS = ("none", "optional", "required")

NOT_A_URL = (
    "must be the URL of a Redis. Fix: write redis://host:6379/0, rediss://host:6379/0 or "
    "unix:///path/redis.sock; in a password write @ / ? # as %40 %2F %3F %23"
)

#: Complaints about a Redis of the wrong kind, each with the fix.
CLUSTER = (
    "is a cluster, but all keys of a job must be on one server. Fix: put a single Redis or Valkey into "
    "HERD_REDIS_URL"
)
READ_ONLY = "is a read-only replica. Fix: put its primary into HERD_REDIS_URL"
SENTINEL = (
    "is a Sentinel, or older than Redis 6.2. Fix: put the Redis that keeps the data into HERD_REDIS_URL"
)

#: Most characters shown of an error that this module does not know.
MAX_ERROR_CHARS = 160
_PLACE_IN_SCRIPT = re.compile(r"Error running script \(call to \w+\): |@?user_script: ?\d+: |script: \w+, .*")


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


def checked_url(url: str) -> str:
    """`url` in redis-py's form. Raises SettingsError if it is not the URL of a Redis."""
    try:
        return _checked(url)
    except ValueError as error:
        raise SettingsError(f"HERD_REDIS_URL: {error}") from None


def _checked(url: str) -> str:
    """Raises ValueError. Its message repeats nothing of the URL except names of parameters."""
    parts = _split(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    scheme = parts.scheme
    if scheme == "redis+socket":
        scheme = "unix"
        query = {"db" if name == "virtual_host" else name: value for name, value in query.items()}
    if "ssl_cert_reqs" in query:  # Celery writes CERT_REQUIRED and the like
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].removeprefix("CERT_").lower()
    _check_parameters(scheme, query)
    if scheme == "unix":
        return _joined(scheme, parts.netloc, parts.path, query)
    # Celery reads the number of the database from the path alone.
    database = query.pop("db", "") or parts.path.removeprefix("/")
    _check_database(database)
    return _joined(scheme, parts.netloc, f"/{database}" if database else parts.path, query)


def _split(url: str) -> SplitResult:
    """Raises ValueError if this is not the URL of a Redis, or if its password is not escaped."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        is_socket = parts.scheme in ("unix", "redis+socket")
        is_place = bool(parts.path) if is_socket else parts.scheme in PARAMETERS and parts.port != 0
    except ValueError:
        raise ValueError(NOT_A_URL) from None
    if not is_place or _is_torn(parts):
        raise ValueError(NOT_A_URL)
    return parts


def _is_torn(parts: SplitResult) -> bool:
    """Whether the URL looks as if an unescaped / ? or # in its password had split it."""
    is_socket = parts.scheme in ("unix", "redis+socket")
    return bool(parts.fragment) or (not is_socket and "@" in parts.path + parts.query)


def _check_parameters(scheme: str, query: Mapping[str, str]) -> None:
    known = PARAMETERS[scheme]
    unknown = [name for name in query if name not in known]
    if unknown:
        is_name = unknown[0].isidentifier() and len(unknown[0]) <= 40
        shown = f"the parameter {unknown[0]}" if is_name else "an unknown parameter"
        raise ValueError(f"has {shown}, but {scheme}:// takes only {', '.join(known)}. Fix: leave it out")
    if query.get("ssl_cert_reqs", "required") not in CERTIFICATE_CHECKS:
        raise ValueError(f"ssl_cert_reqs must be one of {', '.join(CERTIFICATE_CHECKS)}")
    _check_database(query.get("db", ""))


def _check_database(database: str) -> None:
    if database and re.fullmatch(r"[0-9]{1,9}", database) is None:
        raise ValueError("the database must be a whole number, as in redis://host:6379/0")


def complete_url(
    url: str,
    *,
    password: str = "",
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> str:
    """`url` completed by password and certificates, so that redis-py and Celery need nothing else.

    Values in `url` itself win, so completing a URL twice changes nothing. Raises SettingsError.
    """
    url = checked_url(url)
    parts = urlsplit(url)
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
        # Celery refuses rediss:// without ssl_cert_reqs.
        query = {"ssl_cert_reqs": "required", **given, **query}
        for name in files.keys() & query.keys():
            if problem := problem_with_file(query[name]):
                raise SettingsError(f"{name} {problem}: {query[name]}")
    elif given:
        raise SettingsError(
            f"certificates need TLS, but HERD_REDIS_URL is {masked(url)}. Fix: write rediss:// instead of redis://"
        )
    return _joined(parts.scheme, netloc, parts.path, query)


def problem_with_file(path: str) -> str:
    """Why a certificate or key cannot be read; empty if it can. TLS would wait for ever at a pipe."""
    try:
        if not Path(path).exists():
            return "names a file that does not exist"
        if not Path(path).is_file():
            return "names something that is not a regular file"
        with Path(path).open("rb"):
            return ""
    except OSError as error:
        return f"names a file that cannot be read: {error.strerror}"


def celery_url(url: str) -> str:
    """`url` in Celery's form, which differs for sockets."""
    url = checked_url(url)
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = {"virtual_host" if name == "db" else name: value for name, value in parse_qsl(parts.query)}
    return _joined("redis+socket", parts.netloc, parts.path, query)


def is_same_redis(one: str, other: str) -> bool:
    """Whether two URLs, in any form, name the same database of the same Redis."""
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
    """`url` to be shown, without its secrets. A user without a password may be a misplaced password."""
    try:
        parts = urlsplit(url)
        user, at, place = parts.netloc.rpartition("@")
        _ = parts.port  # raises if an unescaped / splits the password
    except ValueError:
        return "(not a URL)"
    if _is_torn(parts):
        return "(not a URL)"
    name, colon, password = user.partition(":")
    shown = f"{name}:***" if colon and password else "***"
    netloc = f"{shown}{at}{place}" if at else place
    return _joined(parts.scheme, netloc, parts.path, {})


def _joined(scheme: str, netloc: str, path: str, query: Mapping[str, str]) -> str:
    """The URL. urlunsplit would drop the two slashes if there is no host."""
    return f"{scheme}://{netloc}{path}" + (f"?{urlencode(query)}" if query else "")


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


def is_full(error: RedisError) -> bool:
    """Whether Redis was out of memory. If a script met that, it may be said only in the message."""
    return isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error)


def is_denied(error: RedisError) -> bool:
    """Whether the user may not do that. If a script met it, only the message says so, and by version."""
    told = ("The user executing the script can't", "ACL failure in script", "NOPERM ")
    return isinstance(error, AuthenticationError | NoPermissionError) or any(
        words in str(error) for words in told
    )


def complaint_of(error: RedisError) -> str:
    """What this error says about Redis, with the fix; to be read after its address."""
    match error:
        case _ if is_denied(error):
            return (
                "rejects the user or the password, or the user lacks a right. Fix: put the user into "
                "HERD_REDIS_URL and the password into HERD_REDIS_PASSWORD; docs/security.md lists the rights "
                "of each role"
            )
        case NoScriptError():
            return "lacks our scripts, and this user may not load them. Fix: start a worker, which loads them"
        case _ if is_full(error):
            return "is full and accepts no jobs. Fix: wait until jobs are done, or raise its maxmemory"
        case _ if "MISCONF " in str(error):
            return "cannot write to its disk and accepts no jobs. Fix: free disk space there"
        case ReadOnlyError() | MasterDownError():
            return READ_ONLY
        case ResponseError() if "READONLY " in str(error):
            return READ_ONLY
        case ClusterCrossSlotError() | MovedError() | ClusterDownError():
            return CLUSTER
        case ResponseError() if "non local key" in str(error):
            return CLUSTER
        case ResponseError() if str(error).startswith("unknown command"):
            return SENTINEL
        case TimeoutError():
            return "does not answer. Fix: check that it is running and that HERD_REDIS_URL is its address"
        case redis.ConnectionError():
            return (
                "cannot be reached. Fix: start it (herd worker --with-redis brings one along), "
                "or set HERD_REDIS_URL to its address"
            )
        case _:
            return f"answers with an error: {_plain(error)}"


def _plain(error: RedisError) -> str:
    """The beginning of an error's message, without the place in our script where it occurred."""
    words = " ".join(_PLACE_IN_SCRIPT.sub("", str(error)).split())
    return words if len(words) <= MAX_ERROR_CHARS else f"{words[:MAX_ERROR_CHARS]}..."
