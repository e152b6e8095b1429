"""What the ledger holds as a whole. Every call has a bounded cost."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Call, Script
from llama_herd.tasks.ledger.replies import text

#: Most queues in one answer, and most running jobs that are assigned to their queues.
MAX_QUEUES = 500
MAX_LOOKS = 2000

_QUEUES = Script("queues", "clock", "queue")


class QueueCounts(NamedTuple):
    """What a queue holds. Times are unix milliseconds; 0: unknown.

    num_taken: jobs that workers took within the last `span_ms`. oldest_ms: when its oldest waiting job was
    due. served_ms: the last report of a worker that serves it.
    """

    queue: str
    num_messages: int
    num_jobs: int
    num_tokens: int
    num_delayed: int
    num_running: int
    num_taken: int
    span_ms: int
    oldest_ms: int
    served_ms: int


class Queues(NamedTuple):
    """The queues of a tenant at a time."""

    now_ms: int
    counts: list[QueueCounts]


@dataclass(frozen=True)
class Overview(Keys):
    """All calls that look at the whole of one tenant."""

    def queues(self, queue: str) -> Call[Queues]:
        """The queues in which jobs wait or run, or that were served lately; `queue` in any case."""
        before, _, after = self.job_key("\0").partition("\0")
        keys = (self.key("waiting"), self.key("served"), self.key("leases"))
        return Call(_QUEUES, keys, (queue, before, after, MAX_QUEUES, MAX_LOOKS), _read_queues)

    def num_poisoned(self) -> Call[int]:
        """Number of jobs that were given up."""
        return Call("ZCARD", (self.key("quarantine"),), (), int)

    def num_letters(self) -> Call[int]:
        """Number of dead letters."""
        return Call("XLEN", (self.key("dead"),), (), int)


def _read_queues(reply: list[Any]) -> Queues:
    now_ms, *rows = reply
    return Queues(now_ms, [QueueCounts(text(name), *map(int, counts)) for name, *counts in rows])
