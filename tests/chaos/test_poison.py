"""A job that kills its worker is given up after three attempts, and takes nobody along."""

import pytest

from tests.chaos.herd import SAMPLED, Herd
from tests.worker.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_a_job_that_kills_its_worker_is_given_up_and_its_mates_are_not_blamed(herd: Herd) -> None:
    doomed = herd.worker(sabotage="poison")
    mates = herd.submit(3, {**SAMPLED, "max_tokens": 40})
    (poison,) = herd.submit(1, prefix="poison")
    num_deaths = 0
    while not herd.has_ended(poison):
        # A start counts once it is recorded, which a death within a millisecond of it may prevent.
        assert num_deaths < 6
        if has_died_of(herd, poison, doomed):
            num_deaths += 1
            doomed = herd.worker(sabotage="poison")
    *survived, given_up = herd.results([*mates, poison])
    assert {result.finish_reason for result in survived} == {"length"}
    assert given_up.error is not None
    assert (given_up.error.code, given_up.attempts) == ("poisoned", 3)
    herd.check()
    assert doomed.process.poll() is None


def has_died_of(herd: Herd, poison: str, worker: WorkerProcess) -> bool:
    """Wait until the job has ended either its worker or itself."""
    wait_until(lambda: worker.process.poll() is not None or herd.has_ended(poison), "death or end")
    return worker.process.poll() is not None
