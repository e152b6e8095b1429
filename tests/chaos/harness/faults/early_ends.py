"""Jobs that are ended early, at every stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import sleep

from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.verdict import BrokenLaw

NUM_JOBS = 50
SAMPLING = {"max_tokens": 30, "temperature": 0.8, "seed": 5}

#: How a job may end that was called off.
ENDS = {"cancelled", "stop", "length"}


@contextmanager
def cancel_jobs(herd: Herd) -> Iterator[list[str]]:
    end_early(herd, herd.jobs.client.cancel)
    yield []  # none has to go on


@contextmanager
def revoke_jobs(herd: Herd) -> Iterator[list[str]]:
    """By Celery, which tells the workers that are connected at that moment."""
    wait_until(lambda: num_listening(herd) == len(herd.alive), "every worker listens")
    end_early(herd, partial(herd.jobs.celery.control.revoke, terminate=True))
    yield []  # none has to go on


def num_listening(herd: Herd) -> int:
    """How many workers answer Celery."""
    with herd.jobs.celery.connection() as connection:  # another fault may have broken one of the pool
        return len(herd.jobs.celery.control.ping(limit=len(herd.alive), connection=connection))


def end_early(herd: Herd, end: Callable[[str], object]) -> None:
    """`end` jobs while they wait, prefill, decode, or have just ended. Raises BrokenLaw."""
    job_ids: list[str] = []
    for _ in range(NUM_JOBS):
        job_ids += herd.jobs.submit(1, SAMPLING, prefix="called-off")
        sleep(herd.rng.choice([0, 0.002, 0.01, 0.03]))
        end(herd.rng.choice(job_ids))
    ends = {result.finish_reason for result in herd.jobs.results(job_ids)}
    if "cancelled" not in ends or ends - ENDS:
        raise BrokenLaw("early ends", f"{NUM_JOBS} jobs that were called off ended by {sorted(ends)}")


@contextmanager
def expire_jobs(herd: Herd) -> Iterator[list[str]]:
    """Deadlines, ours and Celery's, pass while jobs wait, prefill, decode, or have just ended."""
    seconds, _ = herd.jobs.redis.time()
    expiring: list[str] = []
    for _ in range(NUM_JOBS // 2):
        deadline_ms = 1000 * seconds + herd.rng.randint(200, 5000)
        herd.jobs.submit(1, SAMPLING, prefix="late", deadline_ms=deadline_ms)
        expiring.append(herd.jobs.send_bare({"sampling": SAMPLING}, expires=herd.rng.uniform(0, 2)))
    # The next fault may be a Redis that loses what it has got last.
    keys = [herd.jobs.ledger.job_key(job_id) for job_id in expiring]
    wait_until(lambda: herd.jobs.redis.exists(*keys) == len(keys), "all on record")
    yield []  # none has to go on
