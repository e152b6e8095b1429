"""What a user of Redis may do: commands, on which keys and channels, as the rules of an ACL file.

No rule names a category of commands, since each category has one that lists names of other tenants. From
Redis 7 on each command is allowed only on keys of its own type, so nobody can put a set where a list should
be. Redis 6.2 allows each command of a user on each of the user's keys.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from llama_herd.tasks.ledger.pauses import PAUSES
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.ledger.stored_api_keys import API_KEYS
from llama_herd.tasks.ledger.stored_files import STORAGES
from llama_herd.tasks.ledger.webhook_configs import SENDER, WEBHOOKS
from llama_herd.tasks.protocol.priority import SEPARATOR

#: Stands for every id in the place of one.
ANY = "*"


def command_names(text: str) -> frozenset[str]:
    """The names in a text, split at spaces."""
    return frozenset(text.split())


#: What every connection needs.
CONNECTION = command_names("PING SELECT")
SUBSCRIPTION = command_names("SUBSCRIBE UNSUBSCRIBE")
#: Who submits may wait until replicas have the job.
WAIT = command_names("WAIT")
SCRIPT_COMMANDS = command_names("SCRIPT|LOAD SCRIPT|EXISTS")
#: Workers and operators see whether Redis may evict jobs. It shows figures of the whole server, and no names.
LOOK = command_names("INFO")

#: Celery's sets of the queues of an exchange.
BINDINGS = ("_kombu.binding", "_kombu.binding_permanent")
#: Beginnings of the lists of files and batches that are due in a storage.
_DUE = ("herd:files@", "herd:batches@")
#: Celery's names of results and of chords.
RESULT_NAMES = ("celery-task-meta-*", "celery-taskset-meta-*", "chord-unlock-*")


class Dialect(StrEnum):
    """The version of Redis that will read the rules. From 7 on it has selectors."""

    FLAT = "6"
    SELECTORS = "7"


class KeyType(StrEnum):
    """The type of a key in Redis."""

    HASH = "hash"
    LIST = "list"
    SET = "set"
    SORTED_SET = "sorted set"
    STREAM = "stream"
    STRING = "string"
    KEPT = "keys of the gateway's callers and webhooks of tenants, hashes that it only reads"
    PAUSES = "what is paused, sorted sets that it only reads"


#: The types of the tenant's keys, by the part of their names after the tenant.
KEY_TYPES = {
    **dict.fromkeys(("{*}:file", "{*}:batch", "quota", "kept"), KeyType.HASH),
    **dict.fromkeys(("stored_files", "stored_batches"), KeyType.SORTED_SET),
    **dict.fromkeys(
        ("{*}:job", "waiting", "sweep", "worker:*", "batch:*", "unacked", "webhook"), KeyType.HASH
    ),
    **dict.fromkeys(
        ("pending", "pending:*", "delayed", "leases", "quarantine", "owed", "untold"), KeyType.SORTED_SET
    ),
    **dict.fromkeys(("workers", "batches", "served", "unacked_index"), KeyType.SORTED_SET),
    **dict.fromkeys(("outbox", "outbox:dead", "room:*", "server:*", "ended", "failed"), KeyType.SORTED_SET),
    **dict.fromkeys(PAUSES, KeyType.PAUSES),
    "outbox:entries": KeyType.HASH,
    **dict.fromkeys(("{*}:events", "dead"), KeyType.STREAM),
}

_COMMANDS_OF_TYPE = {
    KeyType.HASH: command_names("HSET HSETNX HGET HMGET HGETALL HKEYS HSCAN HDEL HINCRBY HEXISTS"),
    KeyType.LIST: command_names("LPUSH RPUSH RPOP LLEN LRANGE LINDEX LREM EXISTS TYPE"),
    KeyType.SET: command_names("SADD SREM SMEMBERS SSCAN"),
    KeyType.SORTED_SET: command_names(
        "ZADD ZREM ZSCORE ZMSCORE ZRANK ZREVRANK ZCARD ZCOUNT ZRANGE ZREVRANGE ZRANGEBYSCORE "
        "ZREMRANGEBYSCORE ZREMRANGEBYRANK"
    ),
    KeyType.STREAM: command_names("XADD XDEL XLEN XTRIM XRANGE XREVRANGE XREAD"),
    KeyType.STRING: command_names("GET MGET SET SETEX INCR"),
    KeyType.KEPT: command_names("HGET HGETALL HLEN"),
    KeyType.PAUSES: command_names("ZSCORE ZRANGEBYSCORE"),
}
#: Commands on keys of any type, except that queues, bindings and keys of callers are neither deleted nor
#: watched.
_COMMANDS_OF_ANY_TYPE = command_names("DEL UNLINK EXISTS EXPIRE PEXPIRE PTTL MEMORY|USAGE WATCH")
_NEVER_DELETED = frozenset({KeyType.LIST, KeyType.SET, KeyType.KEPT, KeyType.PAUSES})
#: By which who keeps such keys adds to them and takes away.
_KEEPING = {
    KeyType.KEPT: command_names("HSETNX HDEL"),
    KeyType.PAUSES: command_names("ZADD ZREM ZREMRANGEBYSCORE"),
}
_WITHOUT_KEYS = (
    CONNECTION
    | SUBSCRIPTION
    | SCRIPT_COMMANDS
    | LOOK
    | WAIT
    | command_names("PUBLISH MULTI EXEC DISCARD UNWATCH TIME")
)


@dataclass(frozen=True)
class Rights:
    """The allowed commands, key patterns and channel patterns. Nothing else is allowed.

    kept: those of `keys` that others only read, and this user changes.
    """

    commands: frozenset[str]
    keys: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    @classmethod
    def to_run(cls, *calls: RedisCall[Any]) -> Self:
        """The rights that these calls need."""
        commands = set[str]()
        for call in calls:
            commands |= {"EVALSHA", *call.what.commands} if isinstance(call.what, Script) else {call.what}
        return cls(frozenset(commands), frozenset(key_pattern(key) for call in calls for key in call.keys))

    def __add__(self, other: "Rights") -> "Rights":
        return Rights(
            self.commands | other.commands,
            self.keys | other.keys,
            self.channels | other.channels,
            self.kept | other.kept,
        )

    def user(self, name: str, password: str, dialect: Dialect) -> str:
        """A user with these rights as a line of an ACL file, which has only the SHA-256 of the password."""
        digest = hashlib.sha256(password.encode()).hexdigest()
        channels = " ".join(f"&{channel}" for channel in sorted(self.channels))
        head, tail = f"user {name} on #{digest} resetkeys", f"resetchannels {channels} -@all"
        if dialect is Dialect.FLAT:
            return f"{head} {_rules(self.keys)} {tail} {_rules(commands=self.commands)}"
        selectors = " ".join(f"({_rules(*selector)})" for selector in self._selectors() if all(selector))
        return f"{head} {tail} {_rules(commands=self.commands & _WITHOUT_KEYS)} {selectors}"

    def _selectors(self) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
        """Pairs of keys and the commands allowed on them."""
        by_type = {kind: frozenset(key for key in self.keys if kind in _types_of(key)) for kind in KeyType}
        for type_, commands in _COMMANDS_OF_TYPE.items():
            yield by_type[type_], self.commands & commands
        others = (keys for kind, keys in by_type.items() if kind not in _NEVER_DELETED)
        yield frozenset().union(*others), self.commands & _COMMANDS_OF_ANY_TYPE
        for type_, commands in _KEEPING.items():
            yield self.kept & by_type[type_], self.commands & commands
        yield self.keys, self.commands & {"EVALSHA"}


def key_pattern(key: str) -> str:
    """The pattern of a key. An ACL file cannot have control characters. All lines are as one."""
    line = re.match(r"herd:[^:]+:pending:", key)
    return f"{line[0]}{ANY}" if line else key.replace(SEPARATOR, "[^!-~]" * len(SEPARATOR))


def _rules(keys: Iterable[str] = (), commands: Iterable[str] = ()) -> str:
    return " ".join(
        [*(f"~{key}" for key in sorted(keys)), *(f"+{name.lower()}" for name in sorted(commands))]
    )


def _types_of(key: str) -> Collection[KeyType]:
    """The types that a key of this pattern may have. Celery's result names include those of chords' parts."""
    if key.startswith(BINDINGS):
        return {KeyType.SET}
    if key.endswith(RESULT_NAMES):
        return {KeyType.STRING, KeyType.SORTED_SET}
    if key in (API_KEYS, WEBHOOKS):
        return {KeyType.KEPT}
    if key == SENDER:
        return {KeyType.HASH}
    if key == STORAGES or key.startswith(_DUE):
        return {KeyType.SORTED_SET}
    if key.startswith("herd."):
        return {KeyType.LIST}
    return {KEY_TYPES[key.split(":", 2)[2]]}
