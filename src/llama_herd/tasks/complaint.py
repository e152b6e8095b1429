"""What an error of Redis says, and the fix: words that a person can act on."""

import re
import socket
import ssl
from typing import TypeVar

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
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

E = TypeVar("E", bound=BaseException)

#: Complaints about a Redis of the wrong kind, each with the fix.
CLUSTER = (
    "is a cluster, but all keys of a job must be on one server. Fix: put a single Redis or Valkey into "
    "HERD_REDIS_URL"
)
READ_ONLY = "is a read-only replica. Fix: put its primary into HERD_REDIS_URL"
SENTINEL = (
    "is a Sentinel, or older than Redis 6.2. Fix: to ask a Sentinel for its Redis, write "
    "sentinel://host:26379/0?master=NAME into HERD_REDIS_URL"
)
NO_PASSWORD = (
    "asks for a password (NOAUTH), and none was given. Fix: put it into HERD_REDIS_PASSWORD, and its user, "
    "if there is one, into HERD_REDIS_URL, as in redis://user@host:6379/0"
)
WRONG_PASSWORD = (
    "rejects the user or the password (WRONGPASS). Fix: put the user into HERD_REDIS_URL, as in "
    "redis://user@host:6379/0, and its password into HERD_REDIS_PASSWORD"
)
BROKEN_TLS = (
    "breaks off TLS. Fix: set HERD_REDIS_CERT_FILE and HERD_REDIS_KEY_FILE if it asks for a certificate; "
    "write redis:// if its port speaks no TLS; else wait until it is back"
)
HANGS_UP = (
    "cannot be reached: it closes the connection. Fix: wait until it is back; write rediss:// if its port "
    "speaks TLS"
)
MAX_CLIENTS = (
    "has as many clients as it takes (maxclients). Fix: redis-cli CONFIG SET maxclients to more, or end "
    "some: CLIENT LIST shows whose they are"
)
NO_PRIMARY = (
    "has no primary: no Sentinel answers, or none knows one by that name. Fix: wait if a failover is under "
    "way, else check hosts and master= in HERD_REDIS_URL"
)
CLOSED_SENTINELS = (
    "cannot be asked for: its Sentinels ask for a password, or reject it. Fix: put it into "
    "HERD_SENTINEL_PASSWORD, and their user, if there is one, as sentinel_username= into HERD_REDIS_URL"
)
START_IT = "start it (herd worker --with-redis brings one along), or set HERD_REDIS_URL to its address"
CHECK_ADDRESS = "check that HERD_REDIS_URL is its address"

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


def distrusts(error: BaseException) -> bool:
    """Whether TLS has failed by a certificate, which no waiting mends."""
    return _cause(error, ssl.SSLCertVerificationError) is not None


def complaint_of(error: RedisError, *, is_tls: bool = False) -> str:
    """What this error says about Redis, with the fix; to be read after its address. `is_tls`: by that."""
    match error:
        case AuthenticationError():
            return NO_PASSWORD if _was_without_password(error) else WRONG_PASSWORD
        case _ if is_denied(error):
            return denial(error)
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
        case BusyLoadingError():
            return "still reads its data from disk. Fix: wait until it has"
        case redis.ConnectionError() | TimeoutError():
            return _unconnected(error, is_tls)
        case _:
            return f"answers with an error: {_plain(error)}"


def denial(error: RedisError, what: str = "do that") -> str:
    """That the user lacks a right: what Redis says, and the fix."""
    return (
        f"does not let this user {what} (NOPERM): {_plain(error)}. "
        "Fix: give it the role that it needs (herd acl), see docs/security.md"
    )


def _was_without_password(error: AuthenticationError) -> bool:
    """Whether NOAUTH was the answer: redis-py leaves the code of an error out."""
    return any(words in str(error) for words in ("Authentication required", "already authenticated"))


def _unconnected(error: RedisError, is_tls: bool) -> str:
    """Why there is no connection, or no answer by it."""
    if "max number of clients" in str(error):
        return MAX_CLIENTS
    if "No master found" in str(error):
        return CLOSED_SENTINELS if "uthenticat" in str(error) else NO_PRIMARY
    if untrusted := _cause(error, ssl.SSLCertVerificationError):
        return _distrust(untrusted)
    if _cause(error, ssl.SSLError):
        return BROKEN_TLS
    if isinstance(error, TimeoutError):
        if "handshake" in str(error.__context__):
            return f"does not answer in TLS. Fix: {CHECK_ADDRESS}; write redis:// if it speaks no TLS"
        return f"does not answer. Fix: check that it is running, and {CHECK_ADDRESS}"
    if _cause(error, socket.gaierror):
        return f"cannot be reached: this machine knows no such host. Fix: {CHECK_ADDRESS}"
    if _cause(error, ConnectionRefusedError):
        return f"cannot be reached: nothing listens there. Fix: {START_IT}"
    lost = _cause(error, OSError)
    if lost is None or isinstance(lost, ConnectionError):
        # After a handshake of TLS 1.3 a refused certificate may be seen as nothing but that.
        return BROKEN_TLS if is_tls else HANGS_UP
    return f"cannot be reached: {lost.strerror or type(lost).__name__}. Fix: {START_IT}"


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with the certificate that Redis shows."""
    reason = error.verify_message.rstrip(".")
    if "not valid for" in reason:
        fix = "write the host that its certificate names into HERD_REDIS_URL"
    elif "expired" in reason:
        fix = "give Redis a new certificate"
    else:
        fix = "put the certificate of the CA that signed it into HERD_REDIS_CA_FILE"
    return f"shows a certificate that is not trusted ({reason}). Fix: {fix}"


def _cause(error: BaseException, kind: type[E]) -> E | None:
    """The first error of a kind behind this one, itself included; redis-py repeats it in words only."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    return found


def _plain(error: RedisError) -> str:
    """The beginning of an error's message, without the place in our script where it occurred."""
    words = " ".join(_PLACE_IN_SCRIPT.sub("", str(error)).split())
    return words if len(words) <= MAX_ERROR_CHARS else f"{words[:MAX_ERROR_CHARS]}..."
