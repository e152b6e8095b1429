"""Tasks of others that a worker holds until their ETA, where these take the places of jobs."""

from collections.abc import Mapping
from time import monotonic

import structlog

from llama_herd.tasks.protocol.worker_status import LATER_FIX

log = structlog.get_logger(__name__)

#: A queue is told of again after so long: its tasks come due one by one, and others follow.
TELL_AGAIN_S = 600.0


class LaterTasks:
    """Knows the queues whose jobs find no place, or less, since tasks for later take it.

    Celery holds these beside those for now, up to `worker_eta_task_limit`. What is beyond that it counts as
    if it ran. A list cannot be read past them.
    """

    def __init__(self) -> None:
        self.found: Mapping[str, int] = {}
        self._told_s: dict[str, float] = {}

    def note(self, found: Mapping[str, int]) -> None:
        """Note how many tasks of these queues are held, and log each queue once."""
        for queue, num in found.items():
            if monotonic() - self._told_s.get(queue, -TELL_AGAIN_S) >= TELL_AGAIN_S:
                self._told_s[queue] = monotonic()
                log.warning("tasks with an ETA take the places of jobs", queue=queue, num=num, fix=LATER_FIX)
        self.found = found
