"""A point in long work where other threads get their turn."""

from threading import Event as Flag
from time import monotonic, sleep

from llama_herd.tasks.feeder.batch_lease import BatchLease
from llama_herd.tasks.feeder.row_runner import LeftToOthers

#: How long work goes on without a pause. The pause itself takes 50 microseconds.
TURN_S = 0.002


class YieldPoint:
    """Call it often: it lets other threads of the gateway run, and renews the lease."""

    def __init__(self, lease: BatchLease, leaving: Flag) -> None:
        self._lease = lease
        self._leaving = leaving
        self._paused_s = monotonic()

    def __call__(self) -> None:
        """Raises Fenced, LeftToOthers, RedisUnavailable."""
        if monotonic() - self._paused_s < TURN_S:
            return
        sleep(0)
        self._lease.renew_if_due()
        if self._leaving.is_set():
            raise LeftToOthers
        self._paused_s = monotonic()
