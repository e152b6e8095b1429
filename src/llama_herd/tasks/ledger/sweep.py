"""What workers do for all: push lost messages again, end jobs that nobody will run, gather stray messages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger.answers import Swept
from llama_herd.tasks.ledger.keys import around_id
from llama_herd.tasks.ledger.ledger import LOST, Ledger, end_tail
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.message import queue_name

#: If the next message of a list is this much younger than a waiting job, that job's message counts as lost.
SWEEP_PATIENCE_MS = 3_000
#: A shorter time between two sweeps is no gap: they normally come once a second.
SWEEP_GAP_MS = 1_500
#: Most overtaken messages that one sweep pushes again.
SWEEP_MAX_PUSHES = 64
#: Most jobs of dead workers that one sweep takes back: enough for the largest worker.
SWEEP_MAX_TAKEN = 1_100
#: Most jobs of each kind that one sweep looks at.
SWEEP_MAX_LOOKS = 512
#: A tenant that has none of these keys has nothing to sweep.
_TO_SWEEP = ("pending", "delayed", "leases", "waiting", "dead", "quarantine", "outbox", "outbox_dead")


def sweep_tenant(ledger: Ledger) -> RedisCall[Swept]:
    """Push the lost messages again, and the messages of jobs that are now due.

    Every worker calls it about once a second; most calls do nothing. It also ends jobs that nobody runs
    and that are cancelled, past their deadline, or for too long in a queue that no worker ever served.
    """
    unserved = (
        f"no worker has ever served the job's model, for which it waited {ledger.unserved_timeout_s} s. "
        "Fix: check the name, or set HERD_MODELS"
    )
    return call(
        "sweep",
        lambda reply: Swept(tuple(map(text, reply[1:])), held=text(reply[0]) == "held"),
        **ledger.keys_named(
            *("pending", "delayed", "leases", "waiting", "sweep", "dead", "served", "deadlines", "paused"),
            *("quarantine", "untold"),
        ),
        **ledger.ending_keys,
        **around_id(ledger.job_key),
        events_after=around_id(ledger.events_key)["after"],
        channels=ledger.channel(""),
        between_ms=ledger.between_sweeps_ms,
        gap_ms=max(SWEEP_GAP_MS, ledger.lease_ms * 2 // 3),
        lease_ms=ledger.lease_ms,
        patience_ms=SWEEP_PATIENCE_MS,
        max_pushes=SWEEP_MAX_PUSHES,
        max_looks=SWEEP_MAX_LOOKS,
        max_taken=SWEEP_MAX_TAKEN,
        ttl_s=ledger.stream_ttl_s,
        failed_s=ledger.failed_ttl_s,
        letter_s=ledger.dead_ttl_s,
        late_tail=end_tail("deadline"),
        cancelled_tail=end_tail("cancelled"),
        lost_tail=end_tail("error", LOST),
        unserved_tail=end_tail("error", Failure(code=ErrorCode.UNSERVED, message=unserved)),
        unserved_ms=1000 * ledger.unserved_timeout_s,
        away_ms=1000 * WORKER_TTL_S,
        max_outbox=ledger.max_outbox,
        standing=[queue_name(model, ledger.tenant) for model in ledger.standing_models],
    )


def due_for_sweep(ledgers: Sequence[Ledger]) -> RedisCall[list[bool]]:
    """Which of these tenants are to be swept now. A tenant without anything to sweep counts as swept.

    Every worker asks about once a second. Most of the answers are no: another worker has just swept.
    """
    return call(
        "due_for_sweep",
        lambda reply: [answer == 1 for answer in reply],
        between_ms=min((ledger.between_sweeps_ms for ledger in ledgers), default=0),
        tenants=[ledger.keys_named("sweep", *_TO_SWEEP) for ledger in ledgers],
    )


#: Most messages that one call moves, and about how many bytes: Redis waits meanwhile.
MAX_MOVES, MAX_BYTES = 256, 1 << 20


class Gathered(NamedTuple):
    """The messages that were moved from the lists of one separator, and whether there may be more."""

    queue: str
    separator: str
    num_moved: int
    has_more: bool


def binding_key(queue: str) -> str:
    """Key of Celery's note of how a queue's producers name it."""
    return f"_kombu.binding.{queue}"


def gather_strays(queues: Sequence[str]) -> RedisCall[list[Gathered]]:
    """Lead the messages of these queues' stray lists into those that workers ask.

    Only separators are known that a producer has declared the queue with, as Celery does when it sends.
    """
    return call(
        "gather",
        _read_gathered,
        max_moves=MAX_MOVES,
        max_bytes=MAX_BYTES,
        queues=queues,
        bindings=list(map(binding_key, queues)),
    )


def _read_gathered(reply: Sequence[Any]) -> list[Gathered]:
    rows = zip(reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=True)
    return [Gathered(text(queue), text(sep), num, more == 1) for queue, sep, num, more in rows]
