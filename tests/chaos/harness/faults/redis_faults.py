"""Redis goes away under a running herd, comes back, and may have lost data."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import sleep

from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.harness.verdict import BrokenLaw

#: Longer than a lease of 3 s.
PAUSE_S = 5.0

#: Jobs whose lost events must be sent again.
NUM_FORGOTTEN = 6

#: So many tokens that none of them ends meanwhile: nobody sends a lost final event again.
MAX_TOKENS = 200
ENDURING = {"max_tokens": MAX_TOKENS, "temperature": 0.8, "seed": 11, "ignore_eos": True}


@contextmanager
def keeping_owners(herd: Herd) -> Iterator[list[str]]:
    """The running jobs. When they have gone on, none may have been taken from its worker. Raises BrokenLaw.

    A worker may release one itself: while another worker idles, or for a suspect.
    """
    met, put_back = herd.jobs.running(), herd.put_back
    epochs = {job_id: herd.jobs.number(job_id, "epoch") for job_id in met}
    yield met
    taken = herd.put_back - put_back
    for job_id, epoch in epochs.items():
        if taken[job_id] and herd.jobs.number(job_id, "epoch") != epoch:
            raise BrokenLaw("leases do not flap", "it changed hands though its worker lived", job_id)


def outage_strike(outage: Callable[[Herd], AbstractContextManager[None]], seconds: float = 0.0) -> Strike:
    """An outage of the server that ends before the jobs are checked."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        with keeping_owners(herd) as met:
            with outage(herd):
                sleep(seconds)
            yield met

    return strike


kill_redis = outage_strike(lambda herd: herd.server.away())
redis_away = outage_strike(lambda herd: herd.server.away(), PAUSE_S)
pause_redis = outage_strike(lambda herd: herd.server.standing_still(), PAUSE_S)
fill_redis = outage_strike(lambda herd: herd.server.full(), PAUSE_S)
fill_disk = outage_strike(lambda herd: herd.server.disk_full(), PAUSE_S)


@contextmanager
def flush_scripts(herd: Herd) -> Iterator[list[str]]:
    with keeping_owners(herd) as met:
        herd.jobs.redis.script_flush()
        yield met


@contextmanager
def roll_back(herd: Herd) -> Iterator[list[str]]:
    """Redis loses its last writes.

    It hits jobs of its own, as a power failure also loses jobs accepted or ended in the last second.
    """
    with herd.jobs.alone():
        job_ids = herd.jobs.submit(NUM_FORGOTTEN, ENDURING)
        herd.jobs.wait_for(job_ids, "n", 20)
        with herd.server.forgetting():
            herd.jobs.wait_for_progress(job_ids, 20)
            recorded = {job_id: herd.jobs.number(job_id, "n") for job_id in job_ids}
            need(max(recorded.values()) < MAX_TOKENS, "all jobs run")
        wait_until(
            lambda: all(herd.jobs.number(job_id, "n") > n for job_id, n in recorded.items()),
            "all told again",
        )
    yield job_ids
