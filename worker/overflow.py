"""Jobs that wait here for room go to workers that have some."""

from collections.abc import Callable, Mapping
from time import monotonic

import structlog

from llama_herd.tasks.answers import Release
from llama_herd.tasks.call import run, run_many
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.owner import Owner

log = structlog.get_logger(__name__)

#: A job that has waited for room so long is worth a round trip to another worker.
PATIENCE_S = 1.0


class Overflow:
    """Releases jobs that this worker has claimed and cannot admit soon, while another worker idles.

    The newest go, so that who has waited longest keeps its place, and at most half of the room that others
    say they have, since other full workers see the same room. A job on its last attempt stays: it must be
    alone wherever it runs. From a look before and meanwhile this worker asks for no messages of this
    tenant: they would come back to it.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        attempts: Mapping[str, Attempt],
        status: Callable[[], WorkerStatus],
        close: Callable[[bool], None],
        on_released: Callable[[list[Attempt]], None],
    ) -> None:
        """`attempts` are all jobs that this worker has claimed and not ended, by their ids.

        `close(True)` keeps this worker from asking for messages, within a second. `on_released` gets jobs
        that are in the queue again, under a new message.
        """
        self._redis = owner.redis
        self._ledger = owner.ledger
        self._owner_id = owner.id
        self._attempts = attempts
        self._status = status
        self._close = close
        self._is_closed = False
        self._on_released = on_released

    def shed(self) -> None:
        """Release what others have room for; called once a second.

        Raises RedisError; what is released then stays fenced here.
        """
        waiting = [attempt for attempt in list(self._attempts.values()) if _waits(attempt)]
        num_free = self._num_free_elsewhere() if waiting else 0
        was_closed, self._is_closed = self._is_closed, num_free > 0
        self._close(self._is_closed)
        if not (was_closed and num_free):
            return
        num_released = min(len(waiting), (num_free + 1) // 2)
        newest = sorted(waiting, key=lambda attempt: attempt.claimed_s)[len(waiting) - num_released :]
        releases = [
            self._ledger.release(one.job_id, self._owner_id, one.stream.epoch, push=True) for one in newest
        ]
        answers = run_many(self._redis, releases)
        released = [one for one, answer in zip(newest, answers, strict=True) if answer is Release.RELEASED]
        if released:
            log.info("jobs released to workers with room", num_jobs=len(released))
            self._on_released(released)

    def _num_free_elsewhere(self) -> int:
        """Rows that other workers of this model have free, with nobody waiting for them."""
        mine = self._status()
        return sum(
            max(0, other.slots - other.running)
            for other in run(self._redis, self._ledger.workers())
            if other.name != mine.name
            and other.model == mine.model
            and other.state == "ready"
            and other.waiting == 0
        )


def _waits(attempt: Attempt) -> bool:
    """Whether a job is ready to run and has waited for room longer than is good."""
    is_ready = any(sequence.finish_reason is None for sequence in attempt.sequences)
    has_waited = monotonic() - attempt.claimed_s > PATIENCE_S
    return is_ready and has_waited and attempt.started_s is None and not attempt.is_last
