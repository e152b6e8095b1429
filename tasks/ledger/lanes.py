"""What waits in a tenant, by model and lane, and how much is dead: for those who watch the herd."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Call, Script
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.message import queue_name

#: Most queues of a tenant that are told apart: anybody who submits can name a new one.
MAX_QUEUES = 32

_LANES = Script("lanes", "clock", "queue", "push", "front")

#: The lanes in the order in which the script answers.
_NAMES = ("normal", "urgent", "low")


class Lane(NamedTuple):
    """The messages in a lane. oldest_s: how long the next one has waited; 0 for bare messages."""

    name: str
    num_messages: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """What waits for a model. num_tokens: estimated, of its recorded jobs."""

    model: str
    num_tokens: int
    num_delayed: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What waits in a tenant, the fullest queues first, and what is dead."""

    tenant: str
    waiting: tuple[WaitingJobs, ...]
    num_dead_letters: int
    num_poisoned: int

    @property
    def num_messages(self) -> int:
        return sum(lane.num_messages for one in self.waiting for lane in one.lanes)


def load_of(tenant: str, queue: str) -> Call[TenantLoad]:
    """Ask for a tenant's load. `queue` is told in any case; the others, if jobs wait in them."""
    keys = Keys(tenant)
    prefix = queue_name("", tenant)

    def read(reply: Any) -> TenantLoad:
        num_letters, num_poisoned, *queues = reply
        return TenantLoad(tenant, tuple(_waiting(one, prefix) for one in queues), num_letters, num_poisoned)

    names = (keys.key("waiting"), keys.key("dead"), keys.key("quarantine"))
    return Call(_LANES, names, (queue, MAX_QUEUES), read)


def _waiting(reply: Any, prefix: str) -> WaitingJobs:
    name, num_tokens, num_delayed, *lanes = reply
    told = zip(_NAMES, lanes[::2], lanes[1::2], strict=True)
    return WaitingJobs(
        text(name).removeprefix(prefix),
        max(0, num_tokens),
        max(0, num_delayed),
        tuple(Lane(lane, num, wait_ms / 1000) for lane, num, wait_ms in told),
    )
