"""Counts of a tenant's queues. The call has a bounded cost."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from llama_herd.tasks.ledger.keys import Keys, around_id
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.sampling import DEFAULT_MAX_TOKENS

#: Most queues in one answer, and most running jobs that are assigned to their queues.
MAX_QUEUES = 500
MAX_LOOKS = 2000

#: A queue without jobs is told if a worker has served it within this time.
LATELY_S = 604_800

#: The lanes in the order in which QUEUES answers.
_LANES = ("normal", "urgent", "low")


class LaneCounts(NamedTuple):
    """The messages in a lane. oldest_ms: when its oldest job was due; 0: unknown."""

    name: str
    num_messages: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The counts of a queue, in the order in which QUEUES answers. Times are unix milliseconds; 0: unknown.

    num_jobs, num_tokens: of waiting jobs; the delayed ones wait too. num_left: jobs that the next sweep is to
    bring back, delayed ones whose time has come and those of dead workers, as far as QUEUES has looked.
    num_taken: jobs that workers took within the last `span_ms`. served_ms: the last report of a worker.
    num_stray: messages in lists that workers do not ask; they count in the normal lane. pause_ends_ms: until
    then workers take no jobs of it; 0: they do.
    """

    queue: str
    num_jobs: int
    num_tokens: int
    num_delayed: int
    num_delayed_tokens: int
    num_left: int
    num_left_tokens: int
    num_running: int
    num_taken: int
    span_ms: int
    served_ms: int
    lanes: tuple[LaneCounts, ...]
    num_stray: int = 0
    pause_ends_ms: int = 0

    @property
    def num_messages(self) -> int:
        return sum(lane.num_messages for lane in self.lanes)

    @property
    def num_due(self) -> int:
        """Jobs that wait and may run now, or messages if they are more: bare ones have no job yet."""
        return max(self._num_listed, self.num_messages) + self.num_left

    @property
    def num_due_tokens(self) -> int:
        """Estimated tokens of the jobs that may run now: of a bare message the default, at least one each."""
        listed = max(0, self.num_tokens - self.num_delayed_tokens)
        num_bare = max(0, self.num_messages - self._num_listed)
        return max(listed + self.num_left_tokens + num_bare * DEFAULT_MAX_TOKENS, self.num_due)

    @property
    def _num_listed(self) -> int:
        """Jobs on record that wait in the lists of the queue."""
        return max(0, self.num_jobs - self.num_delayed)

    @property
    def oldest_ms(self) -> int:
        """The time since which the oldest waiting job of the queue is due."""
        return min((lane.oldest_ms for lane in self.lanes if lane.oldest_ms), default=0)


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """The counts of a tenant at one moment: its queues, dead letters, poisoned jobs, owed results.

    kept_bytes, kept_limit_bytes: what ended jobs keep of Redis, and how much they may; 0: no limit.
    """

    tenant: str
    now_ms: int
    num_dead_letters: int
    num_poisoned: int
    num_owed: int
    kept_bytes: int
    kept_limit_bytes: int
    queues: tuple[QueueCounts, ...]

    @property
    def num_messages(self) -> int:
        return sum(one.num_messages for one in self.queues)


@dataclass(frozen=True)
class Overview(Keys):
    """The call that looks at the whole of one tenant."""

    def counts(
        self, *queues: str, max_queues: int = MAX_QUEUES, max_looks: int = MAX_LOOKS
    ) -> RedisCall[TenantCounts]:
        """The queues in which jobs wait or run, or that were served lately; `queues` in any case.

        max_looks: most running jobs that are assigned to their queues; 0: none is counted.
        """
        return call(
            "queues",
            partial(_read_counts, self.tenant),
            **self.keys_named("waiting", "served", "leases", "dead", "quarantine", "delayed"),
            **self.keys_named("owed", "kept", "paused"),
            **around_id(self.job_key),
            max_queues=max_queues,
            max_looks=max_looks,
            lately_ms=1000 * LATELY_S,
            wanted=queues,
        )


def _read_counts(tenant: str, reply: list[Any]) -> TenantCounts:
    now_ms, num_letters, num_poisoned, num_owed, kept_bytes, limit_bytes, *rows = reply
    queues = tuple(_queue_counts(*row) for row in rows)
    return TenantCounts(tenant, now_ms, num_letters, num_poisoned, num_owed, kept_bytes, limit_bytes, queues)


def _queue_counts(name: bytes, *numbers: int) -> QueueCounts:
    *read, num_stray, pause_ends_ms = map(int, numbers)
    counts, lanes = read[: -2 * len(_LANES)], read[-2 * len(_LANES) :]
    told = zip(_LANES, lanes[::2], lanes[1::2], strict=True)
    found: tuple[Any, ...] = (
        text(name),
        *counts,
        tuple(map(LaneCounts._make, told)),
        num_stray,
        pause_ends_ms,
    )
    return QueueCounts(*found)
