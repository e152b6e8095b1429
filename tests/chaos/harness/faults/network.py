"""Faults between workers and Redis: connections that break, stall, crawl and lose replies.

They hit the workers behind the herd's proxy.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.harness.faults.redis_faults import keeping_owners
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until

NUM_CUTS = 4
DELAY_S = 0.1


def _jobs_behind_proxy(herd: Herd) -> list[str]:
    far = {worker.name for worker in herd.alive if worker.settings.redis_url == herd.proxy.url}
    return [job_id for job_id in herd.jobs.running() if herd.jobs.owner(job_id) in far]


@contextmanager
def reset(herd: Herd) -> Iterator[list[str]]:
    with keeping_owners(herd):
        herd.proxy.reset()
        yield _jobs_behind_proxy(herd)


@contextmanager
def cut_replies(herd: Herd) -> Iterator[list[str]]:
    with keeping_owners(herd):
        met = _jobs_behind_proxy(herd)
        herd.proxy.num_cuts = NUM_CUTS
        wait_until(lambda: herd.proxy.num_cuts == 0, "replies cut off")
        yield met


@contextmanager
def black_hole(herd: Herd) -> Iterator[list[str]]:
    """It meets the jobs with which a worker can go on that is not behind the proxy."""
    near = {one.settings.served_model for one in herd.alive if one.settings.redis_url != herd.proxy.url}
    models = {worker.name: worker.settings.served_model for worker in herd.alive}
    met = [job_id for job_id in _jobs_behind_proxy(herd) if models.get(herd.jobs.owner(job_id)) in near]
    herd.proxy.hold()
    try:
        yield met
    finally:
        herd.proxy.release()


@contextmanager
def slow(herd: Herd) -> Iterator[list[str]]:
    herd.proxy.delay_s = DELAY_S
    try:
        yield _jobs_behind_proxy(herd)
    finally:
        herd.proxy.delay_s = 0.0


@contextmanager
def crawl(herd: Herd) -> Iterator[list[str]]:
    herd.proxy.is_bytewise = True
    try:
        yield _jobs_behind_proxy(herd)
    finally:
        herd.proxy.is_bytewise = False
