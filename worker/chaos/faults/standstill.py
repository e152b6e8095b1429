"""Workers that stand still for longer than their lease, and wake up to a world that went on without them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.patience import wait_until


@contextmanager
def freeze(herd: Herd) -> Iterator[list[str]]:
    zombie = herd.busiest()
    zombie.signal(signal.SIGSTOP)
    try:
        yield herd.jobs.running(zombie.name)
    finally:
        zombie.signal(signal.SIGCONT)


@contextmanager
def die_with_a_message(herd: Herd) -> Iterator[list[str]]:
    """A worker that waits has asked for the next message: Redis gives it to a dead man. Others follow."""
    with herd.jobs.alone():
        taken = ""
        while not taken:
            wait_until(lambda: herd.jobs.redis.info("clients")["blocked_clients"], "a worker waits")
            taken = _taken_by_the_frozen(herd)
        dead = herd.alive
        for worker in dead:
            worker.kill()
        herd.replenish(len(dead))
    yield [taken]


def _taken_by_the_frozen(herd: Herd) -> str:
    """Freeze all workers and submit a job; its id if one of them has taken its message, else empty."""
    workers = herd.alive
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    before = herd.jobs.redis.llen(herd.queue)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 20})
    if herd.jobs.redis.llen(herd.queue) == before:
        return job_id
    for worker in workers:  # Redis had ended its wait
        worker.signal(signal.SIGCONT)
    herd.jobs.results([job_id])
    return ""
