"""A pause in long work, for the sake of others."""

from threading import Event as Flag
from time import monotonic, sleep

from llama_herd.tasks.feeder.feeding import Left
from llama_herd.tasks.feeder.lease import Lease

#: How long work goes on without a pause. A pause itself takes the kernel's 50 microseconds.
TURN_S = 0.002


class Breath:
    """To be called often: lets other threads of the gateway have their turn, and keeps the lease."""

    def __init__(self, lease: Lease, leaving: Flag) -> None:
        self._lease = lease
        self._leaving = leaving
        self._paused_s = monotonic()

    def __call__(self) -> None:
        """Raises Fenced, Left, RedisUnavailable."""
        if monotonic() - self._paused_s < TURN_S:
            return
        sleep(0)
        self._lease.keep()
        if self._leaving.is_set():
            raise Left
        self._paused_s = monotonic()
