"""Workers that stand still for longer than their leases, and wake up when others have taken their jobs."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.harness.herd import Herd
from tests.local.tended_worker import TendedWorker


@contextmanager
def frozen(workers: Sequence[TendedWorker]) -> Iterator[None]:
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            worker.signal(signal.SIGCONT)


@contextmanager
def freeze(herd: Herd) -> Iterator[list[str]]:
    zombie = herd.busiest()
    with frozen([zombie]):
        yield herd.jobs.running(zombie.name)


@contextmanager
def die_waiting(herd: Herd) -> Iterator[list[str]]:
    """Idle workers wait and are frozen. Messages come, and the workers die: none of them has taken one."""
    sampling, workers = {"max_tokens": 20}, herd.alive
    with herd.jobs.alone(), frozen(workers):
        met = [*herd.jobs.submit(1, sampling), herd.jobs.send_bare({"sampling": sampling})]
        for worker in workers:
            worker.kill()
    herd.replenish(len(workers))
    yield met
