"""Ends a worker that makes no progress, so that it can be restarted."""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from llama_herd.tasks.connection.temporary_errors import is_temporary
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call, run_calls
from llama_herd.tasks.protocol.worker_status import eviction_complaint
from llama_herd.worker import process
from llama_herd.worker.broker.later_tasks import LaterTasks
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues
from llama_herd.worker.jobs.redis_check import MemoryLimit
from llama_herd.worker.jobs.tenancy import Tenancies

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
#: What memory Redis has is asked each time after so many looks.
LOOKS_A_MEMORY = 5

#: After this long without messages or progress a worker no longer reports itself as ready.
UNREADY_S = 5.0

#: A part without progress gets this many times longer than a silent consumer: its calls have long timeouts.
STUCK_FACTOR = 4


class Poller(Protocol):
    """Polls Redis for messages."""

    #: Whether it takes none of a queue now.
    pauses: Callable[[str], bool]
    #: How many other workers read the same queues.
    num_others: Callable[[], int]
    #: How many of these have free rows, at most.
    num_idle_others: Callable[[], int]
    spoilt: SpoiltQueues
    later: LaterTasks

    @property
    def tags_held(self) -> Sequence[str]:
        """The tags under which the messages are noted that this worker holds; any thread may ask."""

    @property
    def num_polls(self) -> int:
        """Answers of Redis, including those without a message."""

    @property
    def has_room(self) -> bool:
        """Whether it may take messages at all."""


class WatchedPart(Protocol):
    """A part of a worker that does one thing after another, each by a call to Redis."""

    @property
    def num_waiting(self) -> int:
        """Things to do, including the current one."""

    @property
    def num_answered(self) -> int:
        """Things done since the start."""


class Watchdog(threading.Thread):
    """Checks once a second that messages are polled and parts progress, and sometimes what memory Redis has.

    Silence is suspicious only while messages wait and there is room for them: a full batch, a rate limit and
    an empty queue explain it. It and a part without progress are suspicious only while Redis accepts writes.
    Both are counted in looks, so that a process that was frozen is not blamed for it.
    """

    def __init__(
        self,
        tenancies: Tenancies,
        silence_s: float,
        parts: Mapping[str, WatchedPart],
        on_eviction: Callable[[], None],
    ) -> None:
        """`on_eviction` is called when Redis begins to evict jobs, or no longer does."""
        super().__init__(name="watchdog", daemon=True)
        self._redis, self._tenancies = tenancies.redis, tenancies
        self._ledger = ledger = tenancies.first.ledger
        self._depths = [ledger.queue_depth(queue) for queue in tenancies.queues]
        self._queues = ", ".join(tenancies.queues)
        self._silence_s = silence_s
        self._on_eviction = on_eviction
        #: The policy by which Redis may evict jobs now; empty: none.
        self.evicts = ""
        self._poller: Poller | None = None
        self._parts = parts
        self._num_answered = {name: part.num_answered for name, part in parts.items()}
        self._num_still_looks = dict.fromkeys(parts, 0)
        self._num_polls = 0
        self._num_silent_looks = 0
        self._is_stopping = threading.Event()

    @property
    def spoilt(self) -> SpoiltQueues:
        """The queues that messages cannot be taken from; none while nobody takes any."""
        return SpoiltQueues() if self._poller is None else self._poller.spoilt

    @property
    def later(self) -> LaterTasks:
        """Where tasks for later take the places of jobs."""
        return LaterTasks() if self._poller is None else self._poller.later

    @property
    def silent_s(self) -> float:
        """How long messages have waited without being polled."""
        return self._num_silent_looks * INTERVAL_S

    @property
    def stuck_s(self) -> float:
        """How long any part has had work but made no progress."""
        return max(self._num_still_looks.values(), default=0) * INTERVAL_S

    def watch(self, poller: Poller) -> None:
        """Watch this poller from now on; there is a new one after each lost connection."""
        self._poller = poller

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        for number in count():
            if self._is_stopping.wait(INTERVAL_S):
                return
            if number % LOOKS_A_MEMORY == 0:
                self._look_at_memory()
            if self._poller is not None:
                self._num_silent_looks = self._num_silent_looks + 1 if self._is_silent(self._poller) else 0
            if self.silent_s >= self._silence_s:
                log.critical(
                    "messages wait but none was taken, ending the worker",
                    queue=self._queues,
                    seconds=self.silent_s,
                )
                process.end_at_once(process.EXIT_SILENT)
            for name, part in self._parts.items():
                self._check_part(name, part)

    def _look_at_memory(self) -> None:
        """See how much ended jobs may keep of it, and notice when somebody lets Redis evict keys."""
        try:
            memory = MemoryLimit.of(self._redis)
        except RedisError:
            return  # what cannot be seen stays as it was
        for tenancy in self._tenancies:
            tenancy.kept_limit = int(tenancy.settings.kept_share * memory.max_bytes)
        if memory.evicts != self.evicts:
            self._note_eviction(memory.evicts)

    def _note_eviction(self, policy: str) -> None:
        """Jobs are lost while Redis evicts keys."""
        self.evicts = policy
        if policy:
            log.error("Redis may evict jobs", reason=eviction_complaint(policy))
        else:
            log.info("Redis evicts no jobs any more")
        self._on_eviction()

    def _is_silent(self, poller: Poller) -> bool:
        before, self._num_polls = self._num_polls, poller.num_polls
        if before != self._num_polls or not poller.has_room:
            return False
        try:
            depths = run_calls(self._redis, self._depths)
        except RedisError:
            return False
        return any(isinstance(depth, int) and depth > 0 for depth in depths) and self._takes_writes()

    def _check_part(self, name: str, part: WatchedPart) -> None:
        """End the worker if something has waited in a part for too long, but nothing was done."""
        before, self._num_answered[name] = self._num_answered[name], part.num_answered
        num_waiting = part.num_waiting
        is_still = num_waiting > 0 and before == self._num_answered[name] and self._takes_writes()
        self._num_still_looks[name] = self._num_still_looks[name] + 1 if is_still else 0
        seconds = self._num_still_looks[name] * INTERVAL_S
        if seconds == UNREADY_S:
            log.error("part makes no progress", part=name, waiting=num_waiting, seconds=seconds)
        if seconds >= STUCK_FACTOR * self._silence_s:
            log.critical("part is stuck, ending the worker", part=name, seconds=seconds)
            process.end_at_once(process.EXIT_STUCK)

    def _takes_writes(self) -> bool:
        """Whether Redis accepts a write that needs memory; the command changes nothing."""
        try:
            run_call(self._redis, RedisCall("ZADD", (self._ledger.key("leases"),), ("XX", 0, ""), bool))
        except RedisError as error:
            return not is_temporary(error)
        return True
