"""Users of Redis by role: the commands that each may run, on which keys and channels.

The rights of producers and subscribers are derived from the calls that they make. The keys of a call for the
job "*" are the allowed patterns, and its script's text names the allowed commands.

    producer    submits and cancels jobs, by our client or by Celery
    subscriber  reads events and results of jobs whose ids it knows; no prompts, no list of jobs
    worker      runs jobs; may use all keys of its tenant
    operator    uses the whole client: also status, dead letters, purge, pauses and drains
    gateway     does for others what they ask of `herd gateway`, looks up their keys, and sends webhooks
    gatekeeper  makes and revokes the keys of the gateway's callers, those of all tenants
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from llama_herd.errors import BadInput
from llama_herd.tasks.ledger.batch_records import BatchRecord, BatchRecords, BatchRequest
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.job_lists import ALL_ENDED, INDEXES, JobLists
from llama_herd.tasks.ledger.keys import joint_tenant
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import LEFT
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry
from llama_herd.tasks.ledger.overview import Overview
from llama_herd.tasks.ledger.pauses import PAUSES, Pauses
from llama_herd.tasks.ledger.redis_call import RedisCall, redis_time_ms
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.script import all_scripts
from llama_herd.tasks.ledger.stored_api_keys import (
    API_KEYS,
    ApiKey,
    all_keys,
    drop_key,
    find_key,
    num_keys,
    store_key,
)
from llama_herd.tasks.ledger.stored_files import (
    NewFile,
    Quota,
    StoredFiles,
    due_items,
    lost_storages,
    storage_seen,
)
from llama_herd.tasks.ledger.sweep import binding_key
from llama_herd.tasks.ledger.webhook_configs import all_configs, hold_sender_role
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.security.rights import (
    ANY,
    BINDINGS,
    CONNECTION,
    KEY_TYPES,
    LOOK,
    RESULT_NAMES,
    SCRIPT_COMMANDS,
    SUBSCRIPTION,
    WAIT,
    Rights,
    command_names,
    key_pattern,
)

#: The gateway submits by our script, and searches what it purges in queues and in workers' hands.
_PASS_ON = command_names("LPUSH LRANGE LREM HSCAN HDEL ZREM")
#: Celery puts a message into a queue: it looks up the queues of an exchange.
_SEND = command_names("LPUSH SADD SMEMBERS MULTI EXEC")
#: Celery consumes a queue, notes messages under way, and stores results and chords.
_CONSUME = command_names(
    """LPUSH RPUSH LLEN HSET HGET HDEL ZADD ZREM ZRANGE ZCOUNT LRANGE
    SADD SMEMBERS SREM GET MGET SET SETEX INCR EXPIRE PEXPIRE EXISTS TYPE DEL PUBLISH XRANGE
    MULTI EXEC DISCARD WATCH UNWATCH"""
)
#: Our client looks at jobs, batches and dead letters, and deletes them.
_OPERATE = command_names(
    """LLEN LRANGE LREM ZCARD ZSCORE ZMSCORE ZREM ZRANGE HGET HMGET HGETALL HSCAN HDEL
    XLEN XRANGE XREVRANGE XREAD XDEL GET MGET DEL"""
)
#: Scripts of workers take messages and store results by these; no other script has them.
_OF_WORKERS = command_names("RPOP SET")
_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Role(StrEnum):
    """The task of a Redis user."""

    PRODUCER = "producer"
    SUBSCRIBER = "subscriber"
    WORKER = "worker"
    OPERATOR = "operator"
    GATEWAY = "gateway"
    GATEKEEPER = "gatekeeper"

    def user_in(self, tenant: str) -> str:
        """The name of the user with this role. One keeps the gateway for all tenants."""
        return self.value if self is Role.GATEKEEPER else f"{tenant}-{self}"


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
                rights = self._everything(_OPERATE | WAIT) + self._pausing
                return replace(rights, commands=rights.commands - _OF_WORKERS)
            case Role.GATEWAY:
                return self._gateway
            case Role.GATEKEEPER:
                return self._gatekeeper

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.tenant)

    @property
    def _producer(self) -> Rights:
        ledger = self._ledger
        channels = self._results | self._revokes | {ledger.channel(ANY), ledger.notices_to(ANY)}
        return Rights.to_run(
            *self._submits,
            *(ledger.cancel(ANY), ledger.record(ANY), redis_time_ms(), ledger.place(ANY)),
            Pauses(self.tenant).queues_after(0),
        ) + Rights(
            CONNECTION | _SEND | SUBSCRIPTION | WAIT,
            self._queue_keys | self._outbox,
            channels,
        )

    @property
    def _subscriber(self) -> Rights:
        ledger = self._ledger
        reading = CONNECTION | SUBSCRIPTION | {"XREAD", "GET", "MGET"}
        channels = self._results | {ledger.channel(ANY)}
        return Rights.to_run(ledger.read(ANY)) + Rights(reading, self._results, channels)

    @property
    def _gateway(self) -> Rights:
        ledger, letters = self._ledger, DeadLetters(self.tenant)
        overview, lists = Overview(self.tenant), JobLists(self.tenant)
        reports, pauses = Reports(self.tenant), Pauses(self.tenant)
        outbox, sent = Outbox(self.tenant), WebhookEntry(ANY, ANY, ANY, ANY, 0)
        calls: Iterable[RedisCall[Any]] = (
            *self._submits,
            *(ledger.cancel(ANY), ledger.read(ANY), ledger.record(ANY), ledger.place(ANY)),
            *(ledger.jobs_with_news({ANY: 0}), ledger.are_waiting([ANY]), ledger.lease_ends([ANY])),
            *ledger.line_marks(),
            *(ledger.purge(ANY), ledger.body(ANY), ledger.webhook_secret(ANY)),
            *(letters.letters(), letters.letter(ANY), letters.revive(ANY), letters.drop(ANY)),
            *(letters.jobs(), letters.is_quarantined(ANY), letters.unlist(ANY)),
            *map(overview.counts, self.queues),
            *(lists.members(name, None, 1) for name in (*INDEXES, *LEFT, "ended", "failed")),
            *(lists.rows(index, [], "", None, 1) for index in INDEXES),
            *(lists.ended_rows([], ALL_ENDED, 1), *lists.ends(ANY, is_failed=True)),
            *lists.ends(ANY, is_failed=False),
            *(ledger.num_pending(), ledger.num_running()),
            *(reports.workers(), reports.batches()),
            pauses.queues_after(0),
            *(find_key(ANY), all_keys(), num_keys()),
            *self._batch_calls,
            *(outbox.due(1, 1), outbox.sent(sent), all_configs(), hold_sender_role(ANY, 1)),
        )
        # What scripts find by names that they read, and what a purge searches.
        found = {binding_key(queue) for queue in self.queues}
        found |= {ledger.key(name) for name in ("{*}:job", "worker:*", "batch:*", "unacked", "unacked_index")}
        channels = frozenset({ledger.channel(ANY), ledger.notices_to(ANY)})
        others = Rights(
            CONNECTION | SUBSCRIPTION | _PASS_ON | WAIT,
            self._lists | self._outbox | found,
            channels,
        )
        return Rights.to_run(*calls) + others + self._pausing

    @property
    def _pausing(self) -> Rights:
        """To pause queues and drain workers; those who only have to know of it read the same keys."""
        pauses = Pauses(self.tenant)
        kept = frozenset(map(self._ledger.key, PAUSES))
        return Rights.to_run(pauses.pause(ANY), pauses.drain(ANY)) + Rights(
            frozenset(), channels=frozenset({pauses.notices_to_all}), kept=kept
        )

    @property
    def _gatekeeper(self) -> Rights:
        """The keys of all tenants are in one place."""
        new = ApiKey(ANY, ANY, ANY, ANY, ANY, 0)
        return Rights.to_run(all_keys(), store_key(new), drop_key(ANY)) + Rights(
            CONNECTION, kept=frozenset({API_KEYS})
        )

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
        return (
            *(files.begin_upload(ANY), files.add(file, none, none), files.get(ANY)),
            *(files.page(ANY, 1, "asc"), files.drop(ANY), files.put_off(ANY), files.note_deleted(ANY)),
            *(due_items(files.files_due_key, 1), storage_seen(ANY, 1), lost_storages(), redis_time_ms()),
            *(batches.create(ANY, asked, 1), batches.get(ANY), batches.page(ANY, 1), batches.cancel(ANY)),
            *(batches.claim(ANY, 1), batches.note(ANY, 1, 1), batches.start(record, 1, 1, ANY, none)),
            *(batches.end(record, "completed", [file]), batches.note_cleaned(ANY), batches.num_open()),
            *(self._ledger.state(ANY), reports.report_batch(status)),
        )

    def _everything(self, commands: frozenset[str]) -> Rights:
        """All keys and channels of the tenant, with our scripts' commands and `commands`."""
        all_keys = frozenset(map(self._ledger.key, KEY_TYPES))
        events = _fanout_channels(f"{self._ledger.key('celeryev')}/*")  # of Celery's workers
        return Rights(
            (CONNECTION | SUBSCRIPTION | SCRIPT_COMMANDS | LOOK | commands | {"EVALSHA"}).union(
                *(script.commands for script in all_scripts())
            ),
            self._queue_keys | self._results | all_keys,
            self._results | self._revokes | {self._ledger.key(ANY)} | events,
        )

    @property
    def _results(self) -> frozenset[str]:
        """Celery's result keys, and the channels of the same names."""
        return frozenset(f"{self._ledger.results_prefix}{name}" for name in RESULT_NAMES)

    @property
    def _revokes(self) -> frozenset[str]:
        """The channels by which Celery's clients revoke."""
        return _fanout_channels(f"{self._ledger.control_exchange}.pidbox")

    @property
    def _queue_keys(self) -> frozenset[str]:
        """The queues' lists, and their exchanges' bindings."""
        return self._lists | {f"{name}.{queue}" for queue in self.queues for name in BINDINGS}

    @property
    def _outbox(self) -> frozenset[str]:
        """The outbox's keys, where scripts that end a job note its webhook; found beside `leases`."""
        return frozenset(self._ledger.outbox_keys.values())

    @property
    def _lists(self) -> frozenset[str]:
        """The queues' lists."""
        return frozenset(key_pattern(key) for queue in self.queues for key in lists_of(queue))


def _fanout_channels(exchange: str) -> frozenset[str]:
    """The channels of kombu's fan-out exchange, which begin with the number of the database."""
    return frozenset(f"/{number}.{exchange}" for number in ("[0-9]", "[0-9][0-9]"))
