"""What an error of Redis says, and the fix: words that a person can act on."""

import re

import redis
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
