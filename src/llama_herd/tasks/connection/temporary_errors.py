"""Tells which failures of Redis are temporary, so that the same call may be repeated; and a wrong type.

A call that failed for any other reason would fail for ever.
"""

import re

from redis import exceptions

#: Temporary failures that have a type of their own in redis-py. Rejected credentials are a ConnectionError
#: there, and rightly so: they are not the fault of what was sent.
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

#: The code begins the message, or follows the words of a script or a transaction, as in
#: "@user_script: 70: -OOM command ...".
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


def is_read_only(reply: object) -> bool:
    """Whether a reply says that Redis is a replica. redis-py overlooks what a script says."""
    return isinstance(reply, exceptions.ReadOnlyError) or (
        isinstance(reply, exceptions.ResponseError) and "READONLY " in redis_message(reply)
    )


def is_wrong_type(reply: object) -> bool:
    """Whether Redis has refused a command because its key holds another type."""
    return isinstance(reply, exceptions.ResponseError) and "WRONGTYPE" in redis_message(reply)


def redis_message(error: BaseException) -> str:
    """Redis's own message, without the rejected command, which may contain a prompt."""
    return str(error).rpartition(_COMMAND_END)[2]


def is_temporary_text(text: str) -> bool:
    """Whether an error's text, or the error that a script quotes in it, is of a temporary failure."""
    return _MESSAGE.search(text) is not None
