"""Jobs that wait here for room go to workers that have room."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.redis_call import RedisCall, run_calls
from llama_herd.tasks.protocol.priority import LANES, urgency_of
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.publisher import LeftJob, Publisher
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Overflow:
    """Releases jobs that this worker has claimed and cannot run soon: while another worker idles, while more
    urgent ones wait in the queue and this worker can take none, or while a suspect waits to run alone. Of a
    drained worker it releases all that have not ended in time.

    The newest jobs go, so that the longest waiting ones keep their places. At most half of the free room of
    the other workers is used, since other full workers see the same room. A suspect stays: it must run alone
    anywhere. From one look before the release this worker takes no messages of the tenant, as the released
    jobs would come back to it.
    """

    tenancies: Tenancies
    gate: SuspectGate
    publisher: Publisher
    num_places: int  # most messages that this worker has in hand
    away_s: Callable[[], float] = lambda: 0.0  # how long the server that computes has not answered

    def shed(self) -> None:
        """Release jobs that other workers have room for, or that must leave this one; called once a second.

        Raises RedisError. Jobs that were released before the error stay fenced here.
        """
        for tenancy in self.tenancies:
            self._shed(tenancy)

    def _shed(self, tenancy: Tenancy) -> None:
        """Release a tenant's newest waiting jobs where others have room, and all that must leave."""
        in_hand = tenancy.claims.in_hand()
        waiting = [attempt for attempt in in_hand if attempt.waits_for_room]
        # In a paused queue what is released would find no worker.
        num_free = tenancy.heard.num_free if waiting and not tenancy.heard.is_paused else 0
        was_shedding, tenancy.is_shedding = tenancy.is_shedding, num_free > 0 or self.gate.is_closed
        if self.away_s() >= tenancy.settings.engine_away_s:
            self._release(tenancy, in_hand, "jobs released, the engine's server is away")
            return
        drained_s = tenancy.drained_since_s
        if drained_s is not None and monotonic() - drained_s >= tenancy.settings.grace_s:
            self._release(tenancy, in_hand, "jobs released, the worker is drained")
            return
        if was_shedding and num_free:
            num_released = min(len(waiting), (num_free + 1) // 2)
            newest = sorted(waiting, key=lambda attempt: attempt.claimed_s)[len(waiting) - num_released :]
            self._release(tenancy, newest, "jobs released to workers with room")
        elif waiting and self._is_full and not tenancy.heard.is_paused:
            less_urgent = self._less_urgent(tenancy, in_hand, waiting)
            self._release(tenancy, less_urgent, "jobs released, more urgent ones wait in the queue")
        leaving = [attempt for attempt in in_hand if self.gate.must_leave(attempt)]
        self._release(tenancy, leaving, "jobs released, a suspect must run alone")

    @property
    def _is_full(self) -> bool:
        return sum(len(one.claims.in_hand()) for one in self.tenancies) >= self.num_places

    def _less_urgent(self, tenancy: Tenancy, in_hand: list[Attempt], waiting: list[Attempt]) -> list[Attempt]:
        """The newest of the least urgent that wait here, one for each more urgent message that gets a row.

        No more: a job that waits here becomes more urgent, and in the queue it would begin again.
        """
        lengths = run_calls(
            tenancy.redis, [RedisCall("LLEN", (tenancy.queue + lane,), (), int) for lane in LANES]
        )
        coming = Counter[int]()
        for lane, length in zip(LANES, lengths, strict=True):
            coming[urgency_of(lane)] += length if isinstance(length, int) else 0
        for urgency in coming:
            num_held = sum(attempt.urgency >= urgency for attempt in in_hand)
            coming[urgency] = max(0, min(coming[urgency], tenancy.settings.slots - num_held))
        found: list[Attempt] = []
        for attempt in sorted(waiting, key=lambda one: (one.urgency, -one.claimed_s)):
            if len(found) < sum(num for urgency, num in coming.items() if urgency > attempt.urgency):
                found.append(attempt)
        return found

    def _release(self, tenancy: Tenancy, attempts: list[Attempt], log_event: str) -> None:
        if not attempts:
            return
        answers = run_calls(tenancy.redis, [tenancy.release(one, push=True) for one in attempts])
        released = [one for one, answer in zip(attempts, answers, strict=True) if answer is Release.RELEASED]
        # Such as one that was released before, by a call whose answer was lost.
        fenced = [one for one, answer in zip(attempts, answers, strict=True) if answer is Release.FENCED]
        if released:
            log.info(log_event, num_jobs=len(released))
        self.publisher.put([LeftJob(one, Attempt.acknowledge) for one in released])
        self.publisher.put([LeftJob(one, Attempt.let_go) for one in fenced])
