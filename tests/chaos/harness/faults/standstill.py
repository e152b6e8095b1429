"""Workers that stand still for longer than their leases, and wake up when others have taken their jobs."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
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
def die_with_a_message(herd: Herd) -> Iterator[list[str]]:
    """Idle workers have asked for the next message, and are frozen: Redis gives it to one that then dies."""
    with herd.jobs.alone():
        taken = ""
        while not taken:
            wait_until(lambda: herd.jobs.redis.info("clients")["blocked_clients"], "a worker waits")
            taken = _job_of_dead_workers(herd)
    yield [taken]


def _job_of_dead_workers(herd: Herd) -> str:
    """Freeze all workers and submit a job. If one has taken its message, kill all and return the job's id.

    Empty if Redis had ended their wait before: then they live on.
    """
    workers = herd.alive
    with frozen(workers):
        before = herd.jobs.redis.llen(herd.queue)
        (job_id,) = herd.jobs.submit(1, {"max_tokens": 20})
        if herd.jobs.redis.llen(herd.queue) == before:
            for worker in workers:
                worker.kill()
            herd.replenish(len(workers))
            return job_id
    herd.jobs.results([job_id])
    return ""
