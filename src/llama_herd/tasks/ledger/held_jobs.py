"""Calls about the jobs in a worker's hands, of whichever tenants: one call for all of them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

from llama_herd.tasks.ledger.answers import Emitted, Renewal, Renewed, read_emit
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.events import GOOD_ENDS, End, Event, Token, Vectors

FinalState = Literal["done", "failed", "cancelled"]
#: Most events, or jobs, of one call: managed Redis takes no more than about 4,000 arguments.
MAX_ENTRIES = 190


class HeldJob(NamedTuple):
    """A job that a worker has claimed, with the keys of its tenant.

    num_preemptions: how often it has lost its place in the batch, if it has none now; else 0.
    """

    keys: Keys
    job_id: str
    epoch: int
    num_preemptions: int = 0


class EmitEntry(NamedTuple):
    """An event as EMIT takes it. event: its JSON. i: number of tokens, or vectors, recorded before it."""

    job_id: str
    epoch: int
    seq: int
    i: int
    num_ids: int
    kind: Literal["started", "token", "vectors", "end"]
    event: str
    state: FinalState | Literal[""] = ""

    @classmethod
    def from_event(cls, event: Event, i: int) -> Self:
        """The entry of `event`, if `i` tokens or vectors are recorded before it."""
        num_ids = num_recorded(event)
        state = final_state(event) if isinstance(event, End) else ""
        return cls(event.job, event.epoch, event.seq, i, num_ids, event.type, event.to_json(), state)


def num_recorded(event: Event) -> int:
    """How many tokens or vectors an event brings."""
    match event:
        case Token():
            return len(event.ids)
        case Vectors():
            return len(event.texts)
        case _:
            return 0


def final_state(end: End) -> FinalState:
    """The state of the job's record after this `end`."""
    if end.finish_reason in GOOD_ENDS:
        return "done"
    return "cancelled" if end.finish_reason == "cancelled" else "failed"


class TenantEntry(NamedTuple):
    """An event to be recorded, with the keys of its job's tenant."""

    keys: Keys
    entry: EmitEntry


def emit(owner: str, entries: Sequence[TenantEntry], terms: Ledger) -> RedisCall[list[Emitted]]:
    """Record and publish the events of one step. There is one answer for each entry, in order.

    terms: how long leases and streams last, and when an attempt is sound: the same for all tenants.
    If the same call is sent again byte for byte, it changes nothing: all events are duplicates.
    """
    tenants = {whose.tenant: whose for whose, _ in entries}
    numbers = {tenant: number for number, tenant in enumerate(tenants, 1)}
    return call(
        "emit",
        read_emit,
        owner=owner,
        lease_ms=terms.lease_ms,
        ttl_s=terms.stream_ttl_s,
        failed_s=terms.failed_ttl_s,
        sound_tokens=terms.sound_tokens,
        sound_ms=terms.sound_ms,
        tenants=[
            {**one.keys_named("leases"), **one.ending_keys, "channels": one.channel("")}
            for one in tenants.values()
        ],
        entries=[_emitted(whose, entry, numbers[whose.tenant]) for whose, entry in entries],
    )


def _emitted(whose: Keys, entry: EmitEntry, tenant: int) -> dict[str, Argument]:
    return {
        "job": whose.job_key(entry.job_id),
        "events": whose.events_key(entry.job_id),
        "tenant": tenant,
        "id": entry.job_id,
        "epoch": entry.epoch,
        "seq": entry.seq,
        "i": entry.i,
        "num_ids": entry.num_ids,
        "kind": entry.kind,
        "state": entry.state,
        "event": entry.event,
    }


def renew(owner: str, held: Sequence[HeldJob], terms: Ledger) -> RedisCall[list[Renewed]]:
    """Renew the leases of jobs that emit nothing at the moment. There is one answer for each, in order."""
    tenants = {one.keys.tenant: one.keys for one in held}
    numbers = {tenant: number for number, tenant in enumerate(tenants, 1)}
    return call(
        "renew",
        read_renew,
        owner=owner,
        lease_ms=terms.lease_ms,
        tenants=[one.key("leases") for one in tenants.values()],
        jobs=[_renewed(one, numbers[one.keys.tenant]) for one in held],
    )


def _renewed(one: HeldJob, tenant: int) -> dict[str, Argument]:
    return {
        "job": one.keys.job_key(one.job_id),
        "tenant": tenant,
        "id": one.job_id,
        "epoch": one.epoch,
        "preemptions": one.num_preemptions,
    }


def prepare(owner: str, held: Sequence[HeldJob], *, is_done: bool = False) -> RedisCall[list[bool]]:
    """Note that claimed jobs are about to be prepared, or that this is done.

    A death of the worker in between counts against them. Answers for each whether this owner still has it.
    """
    return call(
        "prepare",
        lambda reply: [answer == b"ok" for answer in reply],
        owner=owner,
        begins=int(not is_done),
        jobs=[{"job": one.keys.job_key(one.job_id), "epoch": one.epoch} for one in held],
    )


def read_renew(reply: list[bytes]) -> list[Renewed]:
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [Renewed(Renewal(text(kind)), text(reason)) for kind, reason in pairs]
