"""A job that kills its worker is given up after three attempts, and takes nobody along."""

import pytest

from tests.chaos.herd import SAMPLED, Herd

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_a_job_that_kills_its_worker_is_given_up_and_its_mates_are_not_blamed(herd: Herd) -> None:
    doomed = herd.worker(sabotage="poison")
    mates = herd.submit(3, {**SAMPLED, "max_tokens": 40})
    (poison,) = herd.submit(1, prefix="poison")
    for _ in range(3):
        doomed.wait_for_end()
        doomed = herd.worker(sabotage="poison")
    *survived, given_up = herd.results([*mates, poison])
    assert {result.finish_reason for result in survived} == {"length"}
    assert given_up.error is not None
    assert (given_up.error.code, given_up.attempts) == ("poisoned", 3)
    herd.check()
    assert doomed.process.poll() is None
