"""Calls about the jobs in a worker's hands, of whichever tenants: one call for all of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from llama_herd.tasks.ledger.answers import Emitted, Renewal, Renewed
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import read_emit, text
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.ledger.script_events import EmitEntry

_EMIT = Script("emit", "clock", "life", "outcome", "outbox")
_RENEW = Script("renew", "clock")
_PREPARE = Script("prepare")

#: Most events, or jobs, of one call: managed Redis takes no more than about 4,000 arguments.
MAX_ENTRIES = 220


class LeaseTerms(Protocol):
    """The terms of all jobs of a worker: how long leases and streams last, and when an attempt is sound."""

    @property
    def lease_ms(self) -> int: ...
    @property
    def stream_ttl_s(self) -> int: ...
    @property
    def sound_tokens(self) -> int: ...
    @property
    def sound_ms(self) -> int: ...


class HeldJob(NamedTuple):
    """A job that a worker has claimed, with the keys of its tenant."""

    keys: Keys
    job_id: str
    epoch: int


class TenantEntry(NamedTuple):
    """An event to be recorded, with the keys of its job's tenant."""

    keys: Keys
    entry: EmitEntry


def emit(owner: str, entries: Sequence[TenantEntry], terms: LeaseTerms) -> RedisCall[list[Emitted]]:
    """Record and publish the events of one step. There is one answer for each entry, in order.

    If the same call is sent again byte for byte, it changes nothing: all events are duplicates.
    """
    tenants = {whose.tenant: whose for whose, _ in entries}
    numbers = {tenant: number for number, tenant in enumerate(tenants, 1)}
    keys = [key for one in tenants.values() for key in (one.key("leases"), *one.outbox_keys)]
    args: list[Argument] = [owner, terms.lease_ms, terms.stream_ttl_s, terms.sound_tokens, terms.sound_ms]
    args += [len(tenants), *(one.channel("") for one in tenants.values())]
    for whose, e in entries:
        keys += (whose.job_key(e.job_id), whose.events_key(e.job_id))
        args += (numbers[whose.tenant], e.job_id, e.epoch, e.seq, e.i, e.num_ids, e.kind, e.state, e.event)
    return RedisCall(_EMIT, keys, args, read_emit)


def renew(owner: str, held: Sequence[HeldJob], terms: LeaseTerms) -> RedisCall[list[Renewed]]:
    """Renew the leases of jobs that emit nothing at the moment. There is one answer for each, in order."""
    tenants = {one.keys.tenant: one.keys for one in held}
    numbers = {tenant: number for number, tenant in enumerate(tenants, 1)}
    keys = [one.key("leases") for one in tenants.values()]
    args: list[Argument] = [owner, terms.lease_ms, len(tenants)]
    for whose, job_id, epoch in held:
        keys.append(whose.job_key(job_id))
        args += (numbers[whose.tenant], job_id, epoch)
    return RedisCall(_RENEW, keys, args, _read_renewals)


def prepare(owner: str, held: Sequence[HeldJob], *, is_done: bool = False) -> RedisCall[list[bool]]:
    """Note that claimed jobs are about to be prepared, or that this is done.

    A death of the worker in between counts against them. Answers for each whether this owner still has it.
    """
    return RedisCall(
        _PREPARE,
        [one.keys.job_key(one.job_id) for one in held],
        (owner, int(not is_done), *(one.epoch for one in held)),
        lambda reply: [answer == b"ok" for answer in reply],
    )


def _read_renewals(reply: list[Any]) -> list[Renewed]:
    texts = list(map(text, reply))
    return [Renewed(Renewal(kind), reason) for kind, reason in zip(texts[::2], texts[1::2], strict=True)]
