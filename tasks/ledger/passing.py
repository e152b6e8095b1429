"""Which failures of Redis pass by themselves, so that the same call may be made again later.

Whoever repeats a call for any other reason repeats it for ever.
"""

import re

from redis import exceptions

#: What redis-py knows by a type. Refused credentials count as a lost connection: they are no message's fault.
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

#: A code begins the line, or a script or a transaction quotes it: "@user_script: 70: -OOM command not ...".
_SAID = re.compile(rf"(?:^|[:,.] )-?(?:{_CODES}) |Script killed by user")

#: redis-py puts the refused command before what Redis says, and with it whatever the command holds.
_COMMAND_END = " of pipeline caused error: "


def passes(error: BaseException) -> bool:
    """Whether this failure is over some time, whatever was sent: a lost connection, a full Redis, a failover.

    Of another library's error, as of kombu's OperationalError, its cause decides.
    """
    if isinstance(error, _TYPES):
        return True
    if isinstance(error, exceptions.RedisError):
        return is_passing(said(error))
    return error.__cause__ is not None and passes(error.__cause__)


def said(error: BaseException) -> str:
    """What Redis said, without the command that it refused, which may hold a prompt."""
    return str(error).rpartition(_COMMAND_END)[2]


def is_passing(text: str) -> bool:
    """Whether that is what a Redis says which takes nothing for a while, also out of a script."""
    return _SAID.search(text) is not None
