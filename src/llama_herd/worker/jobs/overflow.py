"""Jobs that wait here for room go to workers that have room."""

from collections.abc import Callable
from time import monotonic

import structlog

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.redis_call import run, run_many
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.lease_holder import LeaseHolder
from llama_herd.worker.jobs.suspect_gate import SuspectGate

log = structlog.get_logger(__name__)

#: A job that has waited this long for room is worth a round trip to another worker.
PATIENCE_S = 1.0


class Overflow:
    """Releases jobs that this worker has claimed and cannot run soon: while another worker idles, or while a
    suspect waits to run alone.

    The newest jobs go, so that the longest waiting ones keep their places. At most half of the free room of
    the other workers is used, since other full workers see the same room. A suspect stays: it must run alone
    anywhere. From one look before the release this worker takes no messages of the tenant, as the released
    jobs would come back to it.
    """

    def __init__(
        self,
        holder: LeaseHolder,
        *,
        claims: ClaimedJobs,
        gate: SuspectGate,
        status: Callable[[], WorkerStatus],
        pause: Callable[[bool], None],
        on_released: Callable[[list[Attempt]], None],
    ) -> None:
        """`pause(True)` stops this worker from taking messages, within a second. `on_released` gets the
        released jobs, which have a new message in the queue.
        """
        self._holder = holder
        self._reports = Reports(holder.ledger.tenant)
        self._claims = claims
        self._gate = gate
        self._status = status
        self._pause = pause
        self._is_paused = False
        self._on_released = on_released

    def shed(self) -> None:
        """Release jobs that other workers have room for, or that must leave this one; called once a second.

        Raises RedisError. Jobs that were released before the error stay fenced here.
        """
        in_hand = self._claims.in_hand()
        waiting = [attempt for attempt in in_hand if _waits(attempt)]
        num_free = self._num_free_elsewhere() if waiting else 0
        was_paused, self._is_paused = self._is_paused, num_free > 0 or self._gate.is_closed
        self._pause(self._is_paused)
        if was_paused and num_free:
            num_released = min(len(waiting), (num_free + 1) // 2)
            newest = sorted(waiting, key=lambda attempt: attempt.claimed_s)[len(waiting) - num_released :]
            self._release(newest, "jobs released to workers with room")
        leaving = [attempt for attempt in in_hand if self._gate.must_leave(attempt)]
        if leaving:
            self._release(leaving, "jobs released, a suspect must run alone")

    def _release(self, attempts: list[Attempt], log_event: str) -> None:
        answers = run_many(self._holder.redis, [self._holder.release(one, push=True) for one in attempts])
        released = [one for one, answer in zip(attempts, answers, strict=True) if answer is Release.RELEASED]
        if released:
            log.info(log_event, num_jobs=len(released))
            self._on_released(released)

    def _num_free_elsewhere(self) -> int:
        """Free rows of other workers of this model that have no waiting jobs."""
        mine = self._status()
        return sum(
            max(0, other.slots - other.running)
            for other in run(self._holder.redis, self._reports.workers())
            if other.name != mine.name
            and other.model == mine.model
            and other.state == "ready"
            and other.waiting == 0
        )


def _waits(attempt: Attempt) -> bool:
    """Whether a job could run, but has waited for room for too long."""
    has_waited = monotonic() - attempt.claimed_s > PATIENCE_S
    may_run = not (attempt.is_last or attempt.has_ended or attempt.started_s)
    has_work = not attempt.sequences or bool(attempt.unended)
    return has_waited and may_run and has_work
