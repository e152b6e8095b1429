"""An error of Redis explained, with the fix: words that a person can act on."""

import json
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

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

#: Complaints, each with the fix.
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
    "has as many clients as it takes (maxclients). Fix: fewer processes, or fewer streams of the synchronous "
    "Client, each of which takes a connection; or redis-cli CONFIG SET maxclients to more than INFO clients "
    "tells now. CLIENT LIST shows whose they are"
)
NO_PRIMARY = (
    "has no primary: no Sentinel answers, or none knows one by that name. Fix: wait if a failover is under "
    "way, else check hosts and master= in HERD_REDIS_URL"
)
CLOSED_SENTINELS = (
    "cannot be asked for: its Sentinels ask for a password, or reject it. Fix: put it into "
    "HERD_SENTINEL_PASSWORD, and their user, if there is one, as sentinel_username= into HERD_REDIS_URL"
)
NO_SCRIPT = "lacks our scripts, and this user may not load them. Fix: start a worker, which loads them"
FULL = (
    "is full and accepts no jobs. Fix: wait until ended jobs expire, or herd purge --all-ended, or raise its "
    "maxmemory"
)
NO_DISK = "cannot write to its disk and accepts no jobs. Fix: free disk space there"
FEW_REPLICAS = (
    "has fewer replicas than it asks for, and accepts no jobs. Fix: wait until they are back, or lower its "
    "min-replicas-to-write"
)
LOADING = "still reads its data from disk. Fix: wait until it has"
START_IT = "start it (herd redis does, on this machine), or set HERD_REDIS_URL to its address"
CHECK_ADDRESS = "check that HERD_REDIS_URL is its address"
UNKNOWN_HOST = f"cannot be reached: this machine knows no such host. Fix: {CHECK_ADDRESS}"
NO_LISTENER = f"cannot be reached: nothing listens there. Fix: {START_IT}"

#: Most characters shown of an error that this module does not know.
MAX_ERROR_CHARS = 160
_PLACE_IN_SCRIPT = re.compile(r"Error running script \(call to \w+\): |@?user_script: ?\d+: |script: \w+, .*")
#: Redis's words where a user lacks a right, in a script too: of many versions, and without redis-py's NOPERM.
_DENIED = "The user executing the script can't|ACL failure in script|NOPERM |has no permissions to "
_UNKNOWN_COMMAND = r"^unknown command ['`](\w+)"
#: How `queue.lua` names a queue and its key that holds no list, and what that holds, unless it may not ask.
_NO_LIST = re.compile(r"WRONGTYPE ((\S+?)(?:\x06\x16\w+)?) holds (\S*);")
#: How `wrong_type_of` names the keys of a call; and most of them: those of the whole tenant come first.
_WRONG_TYPE = re.compile(r"WRONGTYPE one of (.*)")
MAX_NAMED_KEYS = 12


def redis_complaint(error: RedisError, *, is_tls: bool = False) -> str:
    """Explain an error of Redis, with the fix; the text follows the address. is_tls: that of the address."""
    complaint = error_sign(error).complaint
    if complaint is HANGS_UP and is_tls:
        # After a handshake of TLS 1.3 a refused certificate may be seen as nothing but that.
        return BROKEN_TLS
    return complaint if isinstance(complaint, str) else complaint(error)


def is_denied(error: RedisError) -> bool:
    """Whether the user lacks a right."""
    return error_sign(error).complaint is denied_complaint


def distrusts(error: BaseException) -> bool:
    """Whether TLS has failed by a certificate, which no waiting mends."""
    return _cause_of_kind(error, ssl.SSLCertVerificationError) is not None


def denied_complaint(error: RedisError, what: str = "do that") -> str:
    """Say that the user lacks a right, with Redis's own words and the fix."""
    return (
        f"does not let this user {what} (NOPERM): {_short_message(error)}. "
        "Fix: give it the role that it needs (herd acl), see docs/security.md"
    )


def quoted(key: str) -> str:
    """A key as redis-cli takes it: whatever is in it, no terminal obeys it."""
    return json.dumps(key).replace("\\u00", "\\x")


def no_list(key: str, held: str) -> str:
    """Say what a key of a queue holds that should be a list, with the fix. held: its type; empty: unknown."""
    what = f"a {held}, not a list" if held else "not a list"
    return f"its key {quoted(key)} is {what}. Fix: delete or rename it"


def _no_list_complaint(error: RedisError) -> str:
    """Say which list of a job's queue is none."""
    key, queue, held = _NO_LIST.findall(str(error))[0]
    return f"cannot take jobs of {queue}: {no_list(key, held)}"


def names_key(error: ResponseError) -> bool:
    """Whether Redis's error about a key of another type says which key that is."""
    return _NO_LIST.search(str(error)) is not None


def wrong_type_of(keys: Sequence[str]) -> ResponseError:
    """The error of a call with these keys, one of which holds another type: Redis does not say which."""
    more = ", ..." if len(keys) > MAX_NAMED_KEYS else ""
    return ResponseError(f"WRONGTYPE one of {', '.join(map(quoted, keys[:MAX_NAMED_KEYS]))}{more}")


def _wrong_type_complaint(error: RedisError) -> str:
    """Say among which keys one is spoilt, with the fix."""
    keys = _WRONG_TYPE.findall(str(error))[0]
    return (
        f"has a key that is not what we keep there (WRONGTYPE), one of: {keys}. Fix: look at each by TYPE, "
        "and delete or rename the one that somebody else has written"
    )


def is_unknown_command(error: object) -> bool:
    """Whether a reply says that there is no such command."""
    return isinstance(error, ResponseError) and re.search(_UNKNOWN_COMMAND, str(error)) is not None


def _unknown_command_complaint(error: RedisError) -> str:
    """Say which command the server lacks, with both fixes."""
    name = re.findall(_UNKNOWN_COMMAND, str(error))[0]
    return f"{SENTINEL}; if it is a Redis, take rename-command {name} out of its configuration"


def _timeout_complaint(error: RedisError) -> str:
    """Say that Redis did not answer in time."""
    if "handshake" in str(error.__context__):
        return f"does not answer in TLS. Fix: {CHECK_ADDRESS}; write redis:// if it speaks no TLS"
    return f"does not answer. Fix: check that it is running, and {CHECK_ADDRESS}"


def _unreachable_complaint(error: RedisError) -> str:
    """Say that Redis cannot be reached, with the system's words and the fix."""
    lost = _cause_of_kind(error, OSError)
    return f"cannot be reached: {(lost and lost.strerror) or type(lost).__name__}. Fix: {START_IT}"


def _untrusted_complaint(error: RedisError) -> str:
    """Say why the certificate that Redis shows is not trusted, with the fix."""
    untrusted = _cause_of_kind(error, ssl.SSLCertVerificationError)
    reason = untrusted.verify_message.rstrip(".") if untrusted else ""
    if "not valid for" in reason:
        fix = "write the host that its certificate names into HERD_REDIS_URL"
    elif "expired" in reason:
        fix = "give Redis a new certificate"
    else:
        fix = "put the certificate of the CA that signed it into HERD_REDIS_CA_FILE"
    return f"shows a certificate that is not trusted ({reason}). Fix: {fix}"


def _cause_of_kind(error: BaseException, kind: type[E]) -> E | None:
    """The first error of a kind behind this one, itself included; redis-py repeats it in words only."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    return found


def _short_message(error: RedisError) -> str:
    """The beginning of an error's message, without the place in our script where it occurred."""
    words = " ".join(_PLACE_IN_SCRIPT.sub("", str(error)).split())
    return words if len(words) <= MAX_ERROR_CHARS else f"{words[:MAX_ERROR_CHARS]}..."


class ErrorSign(NamedTuple):
    """The marks of an error: its kind, words in it, an error behind it. complaint: how it is explained."""

    kinds: type[RedisError] | tuple[type[RedisError], ...]
    complaint: str | Callable[[RedisError], str]
    words: str = ""  # a regular expression
    cause: type[OSError] | None = None

    def fits(self, error: RedisError) -> bool:
        """Return whether an error has all of these marks."""
        is_caused = self.cause is None or _cause_of_kind(error, self.cause) is not None
        return is_caused and isinstance(error, self.kinds) and re.search(self.words, str(error)) is not None


_UNCONNECTED = (redis.ConnectionError, TimeoutError)

#: The first that fits an error counts. The last one fits all.
SIGNS = (
    # redis-py leaves the code NOAUTH out.
    ErrorSign(AuthenticationError, NO_PASSWORD, "Authentication required|already authenticated"),
    ErrorSign(AuthenticationError, WRONG_PASSWORD),
    ErrorSign(NoPermissionError, denied_complaint),
    ErrorSign(RedisError, denied_complaint, _DENIED),
    ErrorSign(NoScriptError, NO_SCRIPT),
    ErrorSign(ResponseError, _no_list_complaint, _NO_LIST.pattern),
    ErrorSign(ResponseError, _wrong_type_complaint, _WRONG_TYPE.pattern),
    ErrorSign(OutOfMemoryError, FULL),
    ErrorSign(RedisError, FULL, "OOM command not allowed"),  # met by a script
    ErrorSign(RedisError, NO_DISK, "MISCONF "),
    ErrorSign(RedisError, FEW_REPLICAS, "NOREPLICAS "),
    ErrorSign((ReadOnlyError, MasterDownError), READ_ONLY),
    ErrorSign(ResponseError, READ_ONLY, "READONLY "),
    ErrorSign((ClusterCrossSlotError, MovedError, ClusterDownError), CLUSTER),
    ErrorSign(ResponseError, CLUSTER, "non local key"),
    ErrorSign(ResponseError, _unknown_command_complaint, _UNKNOWN_COMMAND),
    ErrorSign(BusyLoadingError, LOADING),
    ErrorSign(_UNCONNECTED, MAX_CLIENTS, "max number of clients"),
    ErrorSign(_UNCONNECTED, CLOSED_SENTINELS, "(?s)No master found.*uthenticat"),
    ErrorSign(_UNCONNECTED, NO_PRIMARY, "No master found"),
    ErrorSign(_UNCONNECTED, _untrusted_complaint, cause=ssl.SSLCertVerificationError),
    ErrorSign(_UNCONNECTED, BROKEN_TLS, cause=ssl.SSLError),
    ErrorSign(TimeoutError, _timeout_complaint),
    ErrorSign(_UNCONNECTED, UNKNOWN_HOST, cause=socket.gaierror),
    ErrorSign(_UNCONNECTED, NO_LISTENER, cause=ConnectionRefusedError),
    ErrorSign(_UNCONNECTED, HANGS_UP, cause=ConnectionError),
    ErrorSign(_UNCONNECTED, _unreachable_complaint, cause=OSError),
    ErrorSign(_UNCONNECTED, HANGS_UP),
    ErrorSign(RedisError, lambda error: f"answers with an error: {_short_message(error)}"),
)


def error_sign(error: RedisError) -> ErrorSign:
    """The first sign that fits an error."""
    return next(sign for sign in SIGNS if sign.fits(error))
