"""What the ledger holds as a whole. Every call has a bounded cost."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Call, Script
from llama_herd.tasks.ledger.replies import number, text

#: Most queues in one answer, and most running jobs that are assigned to their queues.
MAX_QUEUES = 500
MAX_LOOKS = 2000

#: Most jobs of one page.
MAX_PAGE = 500

#: The lists of waiting and of running jobs.
Index = Literal["pending", "leases"]

_QUEUES = Script("queues", "clock", "queue")
_JOBS = Script("jobs", "clock")


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


class JobRow(NamedTuple):
    """What the record of a waiting or running job says. n: tokens recorded."""

    job_id: str
    state: str
    queue: str
    worker: str | None
    n: int
    attempts: int
    submitted_ms: int
    due_ms: int
    deadline_ms: int | None


class JobPage(NamedTuple):
    """Some jobs at a time. next: the place to go on at; None at the end of the list."""

    now_ms: int
    next: int | None
    rows: list[JobRow]


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

    def jobs(
        self,
        index: Index,
        place: int = 0,
        *,
        queue: str = "",
        prefix: str = "",
        due_ms: int | None = None,
    ) -> Call[JobPage]:
        """Waiting (`pending`) or running (`leases`) jobs from a place in their list on, the oldest first.

        queue: only of this queue. prefix: only those whose ids begin so. due_ms: only those due by this time.
        """
        before, _, after = self.job_key("\0").partition("\0")
        wanted = (queue, prefix, "" if due_ms is None else due_ms)
        return Call(
            _JOBS, (self.key(index),), (place, MAX_LOOKS, MAX_PAGE, before, after, *wanted), _read_page
        )

    def num_poisoned(self) -> Call[int]:
        """Number of jobs that were given up."""
        return Call("ZCARD", (self.key("quarantine"),), (), int)

    def num_letters(self) -> Call[int]:
        """Number of dead letters."""
        return Call("XLEN", (self.key("dead"),), (), int)


def _read_queues(reply: list[Any]) -> Queues:
    now_ms, *rows = reply
    return Queues(now_ms, [QueueCounts(text(name), *map(int, counts)) for name, *counts in rows])


def _read_page(reply: list[Any]) -> JobPage:
    now_ms, place, *rows = reply
    return JobPage(now_ms, None if place < 0 else place, [_row(*row) for row in rows])


def _row(
    job_id: bytes, state: bytes, queue: bytes | None, worker: bytes | None, *rest: bytes | None
) -> JobRow:
    *numbers, deadline_ms = rest
    n, attempts, submitted_ms, due_ms = map(number, numbers)
    return JobRow(
        text(job_id),
        text(state),
        text(queue or b""),
        None if worker is None else text(worker),
        n,
        attempts,
        submitted_ms,
        due_ms,
        None if deadline_ms is None else number(deadline_ms),
    )
