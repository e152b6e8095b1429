"""Tells which failures of Redis are temporary, so that the same call may be repeated.

A call that failed for any other reason would fail for ever.
"""

import re

from redis import exceptions

#: Failures with an own type in redis-py. Rejected credentials count as a lost connection: no message is at
#: fault.
_TYPES = (
    ConnectionError,
    TimeoutError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.NoScriptError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)

_CODES = "LOADING|OOM|READONLY|MISCONF|MASTERDOWN|TRYAGAIN|CLUSTERDOWN|NOREPLICAS|BUSY|NOSCRIPT"

#: The code is at the beginning, or is quoted by a script or a transaction: "@user_script: 70: -OOM command
#: ...".
_MESSAGE = re.compile(rf"(?:^|[:,.] )-?(?:{_CODES}) |Script killed by user")

#: Before the error of Redis, redis-py puts the rejected command with all its arguments.
_COMMAND_END = " of pipeline caused error: "


def is_temporary(error: BaseException) -> bool:
    """Whether a failure is temporary, whatever was sent: a lost connection, a full Redis, a failover.

    For errors of other libraries, such as kombu's OperationalError, their cause decides.
    """
    if isinstance(error, _TYPES):
        return True
    if isinstance(error, exceptions.RedisError):
        return is_temporary_text(redis_message(error))
    return error.__cause__ is not None and is_temporary(error.__cause__)


def redis_message(error: BaseException) -> str:
    """Redis's own message, without the rejected command, which may contain a prompt."""
    return str(error).rpartition(_COMMAND_END)[2]


def is_temporary_text(text: str) -> bool:
    """Whether the text of an error, also one quoted by a script, tells of a temporary failure."""
    return _MESSAGE.search(text) is not None
