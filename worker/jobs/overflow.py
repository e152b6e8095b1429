"""Jobs that wait here for room go to workers that have some."""

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

#: A job that has waited for room so long is worth a round trip to another worker.
PATIENCE_S = 1.0


class Overflow:
    """Releases jobs that this worker has claimed and cannot run soon: while another worker idles, and while
    one that must run alone waits for the room of the others.

    The newest go, so that who has waited longest keeps its place, and at most half of the room that others
    say they have, since other full workers see the same room. A job on its last attempt stays: it must be
    alone wherever it runs. From a look before and meanwhile this worker asks for no messages of this
    tenant: they would come back to it.
    """

    def __init__(
        self,
        holder: LeaseHolder,
        *,
        claims: ClaimedJobs,
        gate: SuspectGate,
        status: Callable[[], WorkerStatus],
        close: Callable[[bool], None],
        on_released: Callable[[list[Attempt]], None],
    ) -> None:
        """`close(True)` keeps this worker from asking for messages, within a second. `on_released` gets jobs
        that are in the queue again, under a new message.
        """
        self._redis = holder.redis
        self._ledger = holder.ledger
        self._reports = Reports(holder.ledger.tenant)
        self._owner_id = holder.id
        self._claims = claims
        self._gate = gate
        self._status = status
        self._close = close
        self._is_closed = False
        self._on_released = on_released

    def shed(self) -> None:
        """Release what others have room for, or must leave this worker; called once a second.

        Raises RedisError; what is released then stays fenced here.
        """
        in_hand = self._claims.in_hand()
        waiting = [attempt for attempt in in_hand if _waits(attempt)]
        num_free = self._num_free_elsewhere() if waiting else 0
        was_closed, self._is_closed = self._is_closed, num_free > 0 or self._gate.is_closed
        self._close(self._is_closed)
        if was_closed and num_free:
            num_released = min(len(waiting), (num_free + 1) // 2)
            newest = sorted(waiting, key=lambda attempt: attempt.claimed_s)[len(waiting) - num_released :]
            self._release(newest, "jobs released to workers with room")
        leaving = [attempt for attempt in in_hand if self._gate.must_leave(attempt)]
        if leaving:
            self._release(leaving, "jobs released, a suspect must run alone")

    def _release(self, attempts: list[Attempt], what: str) -> None:
        releases = [
            self._ledger.release(one.job_id, self._owner_id, one.stream.epoch, push=True) for one in attempts
        ]
        answers = run_many(self._redis, releases)
        released = [one for one, answer in zip(attempts, answers, strict=True) if answer is Release.RELEASED]
        if released:
            log.info(what, num_jobs=len(released))
            self._on_released(released)

    def _num_free_elsewhere(self) -> int:
        """Rows that other workers of this model have free, with nobody waiting for them."""
        mine = self._status()
        return sum(
            max(0, other.slots - other.running)
            for other in run(self._redis, self._reports.workers())
            if other.name != mine.name
            and other.model == mine.model
            and other.state == "ready"
            and other.waiting == 0
        )


def _waits(attempt: Attempt) -> bool:
    """Whether a job could run and has waited for that longer than is good."""
    has_waited = monotonic() - attempt.claimed_s > PATIENCE_S
    may_run = not (attempt.is_last or attempt.has_ended or attempt.started_s)
    has_work = not attempt.sequences or bool(attempt.unended)
    return has_waited and may_run and has_work
