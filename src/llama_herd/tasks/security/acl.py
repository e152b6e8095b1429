"""Users of Redis by role: the commands that each may run, on which keys and channels.

The rights of producers and subscribers are derived from the calls that they make. The keys of a call for the
job "*" are the allowed patterns, and its script's text names the allowed commands. No rule names a category,
since every category contains a command that lists names of other tenants.

From Redis 7 on each command is allowed only on keys of its own type, so nobody can put a set where a list
should be. Redis 6.2 allows each command of a user on each of the user's keys.

    producer    submits and cancels jobs, by our client or by Celery
    subscriber  reads events and results of jobs whose ids it knows; no prompts, no list of jobs
    worker      runs jobs; may use all keys of its tenant
    operator    uses the whole client: also status, dead letters and purge
    gateway     does for others what they ask of `herd gateway`, looks up their keys, and sends webhooks
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Self

from llama_herd.errors import BadInput
from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.batch_record import BatchRecord, BatchRequest
from llama_herd.tasks.ledger.batch_records import BatchRecords
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.keys import joint_tenant
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry
from llama_herd.tasks.ledger.overview import INDEXES, Overview
from llama_herd.tasks.ledger.redis_call import RedisCall, Script, commands_of
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.stored_api_keys import API_KEYS, all_keys, find_key, num_keys
from llama_herd.tasks.ledger.stored_files import (
    STORAGES,
    NewFile,
    Quota,
    StoredFiles,
    due_items,
    lost_storages,
    redis_time_ms,
    storage_seen,
)
from llama_herd.tasks.ledger.webhook_configs import SENDER, WEBHOOKS, all_configs, hold_sender_role
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.priority import SEPARATOR, lists_of

#: Stands for every id in the place of one.
ANY = "*"


def _command_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What every connection needs.
_CONNECTION = _command_names("PING SELECT")
_SUBSCRIPTION = _command_names("SUBSCRIBE UNSUBSCRIBE")
#: Who submits may wait until replicas have the job.
_WAIT = _command_names("WAIT")
#: The gateway submits by our script, and searches what it purges in queues and in workers' hands.
_PASS_ON = _command_names("LPUSH LRANGE LREM HSCAN HDEL ZREM")
#: Celery puts a message into a queue: it looks up the queues of an exchange.
_SEND = _command_names("LPUSH SADD SMEMBERS MULTI EXEC")
#: Celery consumes a queue, notes messages under way, and stores results and chords.
_CONSUME = _command_names(
    """BRPOP RPOP LPUSH RPUSH LLEN HSET HGET HDEL ZADD ZREM ZRANGE ZCOUNT LRANGE SADD SMEMBERS SREM
    GET MGET SET SETEX INCR EXPIRE PEXPIRE EXISTS TYPE DEL PUBLISH XRANGE MULTI EXEC DISCARD WATCH UNWATCH"""
)
#: Our client looks at jobs, batches and dead letters, and deletes them.
_OPERATE = _command_names(
    """LLEN LRANGE LREM ZCARD ZSCORE ZMSCORE ZREM ZRANGE HGET HMGET HGETALL HSCAN HDEL
    XLEN XRANGE XREVRANGE XREAD XDEL GET MGET DEL"""
)
_SCRIPTS = _command_names("SCRIPT|LOAD SCRIPT|EXISTS")
#: Workers and operators see whether Redis may evict jobs. It shows figures of the whole server, and no names.
_LOOK = _command_names("INFO")

#: Celery's sets of the queues of an exchange.
_BINDINGS = ("_kombu.binding", "_kombu.binding_permanent")
#: What a storage has to see to.
_DUE = ("herd:files@", "herd:batches@")
#: Celery's names of results and of chords.
_RESULT_NAMES = ("celery-task-meta-*", "celery-taskset-meta-*", "chord-unlock-*")
_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


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


#: The types of the tenant's keys, by the part of their names after the tenant.
_KEY_TYPES = {
    **dict.fromkeys(("{*}:file", "{*}:batch", "quota"), KeyType.HASH),
    **dict.fromkeys(("stored_files", "stored_batches"), KeyType.SORTED_SET),
    **dict.fromkeys(
        ("{*}:job", "waiting", "sweep", "worker:*", "batch:*", "unacked", "webhook"), KeyType.HASH
    ),
    **dict.fromkeys(("pending", "pending:*", "delayed", "leases", "quarantine"), KeyType.SORTED_SET),
    **dict.fromkeys(("workers", "batches", "served", "unacked_index"), KeyType.SORTED_SET),
    **dict.fromkeys(("outbox", "outbox:dead", "room:*"), KeyType.SORTED_SET),
    "outbox:entries": KeyType.HASH,
    **dict.fromkeys(("{*}:events", "dead"), KeyType.STREAM),
    "unacked_mutex": KeyType.STRING,
}

_COMMANDS_OF_TYPE = {
    KeyType.HASH: _command_names("HSET HSETNX HGET HMGET HGETALL HKEYS HSCAN HDEL HINCRBY HEXISTS"),
    KeyType.LIST: _command_names("LPUSH RPUSH RPOP BRPOP LLEN LRANGE LINDEX LREM TYPE"),
    KeyType.SET: _command_names("SADD SREM SMEMBERS"),
    KeyType.SORTED_SET: _command_names(
        "ZADD ZREM ZSCORE ZMSCORE ZRANK ZREVRANK ZCARD ZCOUNT ZRANGE ZREVRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE"
    ),
    KeyType.STREAM: _command_names("XADD XDEL XLEN XTRIM XRANGE XREVRANGE XREAD"),
    KeyType.STRING: _command_names("GET MGET SET SETEX INCR"),
    KeyType.KEPT: _command_names("HGET HGETALL HLEN"),
}
#: Commands on keys of any type, except that queues, bindings and keys of callers are neither deleted nor
#: watched.
_COMMANDS_OF_ANY_TYPE = _command_names("DEL UNLINK EXISTS EXPIRE PEXPIRE WATCH")
_NEVER_DELETED = frozenset({KeyType.LIST, KeyType.SET, KeyType.KEPT})
_WITHOUT_KEYS = (
    _CONNECTION
    | _SUBSCRIPTION
    | _SCRIPTS
    | _LOOK
    | _WAIT
    | _command_names("PUBLISH MULTI EXEC DISCARD UNWATCH TIME")
)


class Role(StrEnum):
    """The task of a Redis user."""

    PRODUCER = "producer"
    SUBSCRIBER = "subscriber"
    WORKER = "worker"
    OPERATOR = "operator"
    GATEWAY = "gateway"


@dataclass(frozen=True)
class Rights:
    """The allowed commands, key patterns and channel patterns. Nothing else is allowed."""

    commands: frozenset[str]
    keys: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()

    @classmethod
    def to_run(cls, *calls: RedisCall[Any]) -> Self:
        """The rights that these calls need."""
        commands = (_commands_of_call(call) for call in calls)
        keys = (_pattern(key) for call in calls for key in call.keys)
        return cls(frozenset().union(*commands), frozenset(keys))

    def __add__(self, other: "Rights") -> "Rights":
        return Rights(self.commands | other.commands, self.keys | other.keys, self.channels | other.channels)

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
        yield self.keys, self.commands & {"EVALSHA"}


@dataclass(frozen=True)
class Acl:
    """The rights of each role in one tenant with these queues."""

    tenant: str
    queues: Collection[str]

    def __post_init__(self) -> None:
        """Raise BadInput for a name that could inject rules."""
        prefix = queue_name("", self.tenant)
        for model in (queue.removeprefix(prefix) for queue in self.queues):
            if not _MODEL_NAME.fullmatch(model):
                raise BadInput(
                    f"model {model!r}: must be 1 to 128 letters, digits, dots, underscores or dashes"
                )

    @classmethod
    def rights_in(cls, acls: "Collection[Acl]", *roles: Role) -> Rights:
        """The rights of these roles in several tenants, also for a worker that serves all of them at once."""
        together = cls(joint_tenant([acl.tenant for acl in acls]), ())
        return sum((acl.rights(role) for acl in [together, *acls] for role in roles), Rights(frozenset()))

    def rights(self, role: Role) -> Rights:
        match role:
            case Role.PRODUCER:
                return self._producer
            case Role.SUBSCRIBER:
                return self._subscriber
            case Role.WORKER:
                return self._everything(_CONSUME)
            case Role.OPERATOR:
                return self._everything(_OPERATE | _WAIT)
            case Role.GATEWAY:
                return self._gateway

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.tenant)

    @property
    def _producer(self) -> Rights:
        ledger = self._ledger
        channels = self._results | self._revokes | {ledger.channel(ANY), ledger.notices_to(ANY)}
        return Rights.to_run(
            *self._submits, ledger.cancel(ANY), ledger.record(ANY), ledger.place(ANY)
        ) + Rights(
            _CONNECTION | _SEND | _SUBSCRIPTION | _WAIT,
            self._queue_keys | self._outbox,
            channels,
        )

    @property
    def _subscriber(self) -> Rights:
        ledger = self._ledger
        reading = _CONNECTION | _SUBSCRIPTION | {"XREAD", "GET", "MGET"}
        channels = self._results | {ledger.channel(ANY)}
        return Rights.to_run(ledger.read(ANY)) + Rights(reading, self._results, channels)

    @property
    def _gateway(self) -> Rights:
        ledger, letters = self._ledger, DeadLetters(self.tenant)
        overview, reports = Overview(self.tenant), Reports(self.tenant)
        outbox, sent = Outbox(self.tenant), WebhookEntry(ANY, ANY, ANY, ANY, 0)
        calls: Iterable[RedisCall[Any]] = (
            *self._submits,
            *(ledger.cancel(ANY), ledger.read(ANY), ledger.record(ANY), ledger.place(ANY)),
            *(ledger.jobs_with_news({ANY: 0}), ledger.are_waiting([ANY]), ledger.are_running([ANY])),
            *ledger.line_marks(),
            *(ledger.purge(ANY), letters.letters(), letters.drop(ANY)),
            *map(overview.counts, self.queues),
            *(overview.jobs(index) for index in INDEXES),
            *(ledger.num_pending(), ledger.num_running()),
            *(reports.workers(), reports.batches()),
            *(find_key(ANY), all_keys(), num_keys()),
            *self._batch_calls,
            *(outbox.due(1, 1), outbox.sent(sent), all_configs(), hold_sender_role(ANY, 1)),
        )
        # What scripts find by names that they read, and what a purge searches.
        found = {ledger.key(name) for name in ("{*}:job", "worker:*", "batch:*", "unacked", "unacked_index")}
        channels = frozenset({ledger.channel(ANY), ledger.notices_to(ANY)})
        others = Rights(
            _CONNECTION | _SUBSCRIPTION | _PASS_ON | _WAIT,
            self._lists | self._outbox | found,
            channels,
        )
        return Rights.to_run(*calls) + others

    @property
    def _submits(self) -> Iterable[RedisCall[Any]]:
        """Jobs for each queue, one alone and some in a lot."""
        ledger, job = self._ledger, GenerationJob(prompt=ANY)
        new = [(ANY, job, Envelope.for_job(ANY, queue)) for queue in self.queues]
        yield from (ledger.submit(*one) for one in new)
        yield ledger.submit_many([ledger.submit_item(*one) for one in new])

    @property
    def _batch_calls(self) -> Iterable[RedisCall[Any]]:
        """The calls of a gateway for files and batches, in any storage."""
        files, batches = StoredFiles(self.tenant, ANY), BatchRecords(self.tenant, ANY)
        file, none, reports = NewFile(ANY, ANY, ANY, 0), Quota(0, 0), Reports(self.tenant)
        asked = BatchRequest(ANY, ANY, ANY)
        record = BatchRecord(ANY, asked, "validating", ANY, 0, 0, 0)
        status = BatchStatus(run_id=ANY, state=ANY, input_name=ANY)
        yield from (files.begin(ANY), files.add(file, none, none), files.get(ANY), files.page(ANY, 1, "asc"))
        yield from (
            files.drop(ANY),
            files.put_off(ANY),
            files.deleted(ANY),
            due_items(files.due_key, 1),
            *(storage_seen(ANY, 1), lost_storages(), redis_time_ms()),
        )
        yield from (
            batches.create(ANY, asked, 1),
            batches.get(ANY),
            batches.page(ANY, 1),
            batches.cancel(ANY),
        )
        yield from (batches.claim(ANY, 1), batches.note(ANY, 1, 1), batches.start(record, 1, 1, ANY, none))
        yield from (batches.end(record, "completed", [file]), batches.cleaned(ANY), batches.num_open())
        yield from (self._ledger.state(ANY), reports.report_batch(status))

    def _everything(self, commands: frozenset[str]) -> Rights:
        """All keys and channels of the tenant, with our scripts' commands and `commands`."""
        all_keys = frozenset(map(self._ledger.key, _KEY_TYPES))
        events = _fanout_channels(f"{self._ledger.key('celeryev')}/*")  # of Celery's workers
        return Rights(
            _CONNECTION | _SUBSCRIPTION | _SCRIPTS | _LOOK | commands | _script_commands(),
            self._queue_keys | self._results | all_keys,
            self._results | self._revokes | {self._ledger.key(ANY)} | events,
        )

    @property
    def _results(self) -> frozenset[str]:
        """Celery's result keys, and the channels of the same names."""
        return frozenset(f"{self._ledger.results_prefix}{name}" for name in _RESULT_NAMES)

    @property
    def _revokes(self) -> frozenset[str]:
        """The channels by which Celery's clients revoke."""
        return _fanout_channels(f"{self._ledger.control_exchange}.pidbox")

    @property
    def _queue_keys(self) -> frozenset[str]:
        """The queues' lists, and their exchanges' bindings."""
        return self._lists | {f"{name}.{queue}" for queue in self.queues for name in _BINDINGS}

    @property
    def _outbox(self) -> frozenset[str]:
        """The outbox's keys, where scripts that end a job note its webhook; found beside `leases`."""
        return frozenset(map(self._ledger.key, ("webhook", "outbox", "outbox:entries", "outbox:dead")))

    @property
    def _lists(self) -> frozenset[str]:
        """The queues' lists."""
        return frozenset(_pattern(key) for queue in self.queues for key in lists_of(queue))


def _pattern(key: str) -> str:
    """The pattern of a key. An ACL file cannot have control characters. All lines are as one."""
    line = re.match(r"herd:[^:]+:pending:", key)
    return f"{line[0]}{ANY}" if line else key.replace(SEPARATOR, "[^!-~]" * len(SEPARATOR))


def _fanout_channels(exchange: str) -> frozenset[str]:
    """The channels of kombu's fan-out exchange, which begin with the number of the database."""
    return frozenset(f"/{number}.{exchange}" for number in ("[0-9]", "[0-9][0-9]"))


def _rules(keys: Iterable[str] = (), commands: Iterable[str] = ()) -> str:
    return " ".join(
        [*(f"~{key}" for key in sorted(keys)), *(f"+{name.lower()}" for name in sorted(commands))]
    )


def _types_of(key: str) -> Collection[KeyType]:
    """The types that a key of this pattern may have. Celery's result names include those of chords' parts."""
    if key.startswith(_BINDINGS):
        return {KeyType.SET}
    if key.endswith(_RESULT_NAMES):
        return {KeyType.STRING, KeyType.SORTED_SET}
    if key in (API_KEYS, WEBHOOKS):
        return {KeyType.KEPT}
    if key == SENDER:
        return {KeyType.HASH}
    if key == STORAGES or key.startswith(_DUE):
        return {KeyType.SORTED_SET}
    if key.startswith("herd."):
        return {KeyType.LIST}
    return {_KEY_TYPES[key.split(":", 2)[2]]}


def _commands_of_call(call: RedisCall[Any]) -> frozenset[str]:
    if isinstance(call.what, Script):
        return frozenset({"EVALSHA"}) | call.what.commands
    return frozenset({call.what})


@cache
def _script_commands() -> frozenset[str]:
    """All commands that our scripts call."""
    folder = resources.files("llama_herd.tasks.ledger") / "lua"
    sources = (file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".lua"))
    return frozenset({"EVALSHA"}).union(*map(commands_of, sources))
