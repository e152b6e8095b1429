"""Keeps a herd busy: when one job ends, another one is submitted."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import sleep
from typing import Any

from redis.exceptions import RedisError

from tests.chaos.harness.jobs import Jobs

#: No more jobs than one worker has room for, so that the jobs of a dead one need not wait.
NUM_IN_FLIGHT = 16

#: One of so many jobs comes as a bare message.
BARE_EVERY = 5

INTERVAL_S = 0.1


class LoadGenerator(threading.Thread):
    """Submits jobs until `finish`, but at least `min_jobs`, or until `stop`."""

    def __init__(self, jobs: Jobs, fields: Iterator[Mapping[str, Any]], min_jobs: int) -> None:
        super().__init__(name="load", daemon=True)
        self._jobs = jobs
        self._fields = fields
        self._min_jobs = min_jobs
        self._is_finishing = threading.Event()

    def finish(self) -> None:
        """Stop submitting once there are enough jobs, and return then."""
        self._is_finishing.set()
        self.join()

    def stop(self) -> None:
        """Submit no more."""
        self._min_jobs = 0
        self.finish()

    def run(self) -> None:
        while not self._is_finishing.is_set() or len(self._jobs.accepted) < self._min_jobs:
            sleep(INTERVAL_S)
            # Redis may be away for longer than our patience: that is the purpose of the run.
            with suppress(RedisError, TimeoutError):
                for _ in range(NUM_IN_FLIGHT - len(self._jobs.unfinished())):
                    self._submit(next(self._fields))

    def _submit(self, fields: Mapping[str, Any]) -> None:
        is_bare = "kind" not in fields and not len(self._jobs.accepted) % BARE_EVERY
        (self._jobs.accept_bare if is_bare else self._jobs.accept)(fields)
