"""What a worker takes for a job or a fault, it gives back."""

from typing import NamedTuple

import pytest

from tests.chaos.harness.faults import network
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.sampling import SAMPLED
from tests.local.tended_worker import TendedWorker

NUM_RESETS = 16
#: Connections that a worker may keep besides, as its pools keep what threads have used at the same moment,
#: broken ones too. A connection lost at each reset would be twice as many.
NUM_SPARE = NUM_RESETS // 2
#: Under way for about a second, so that each reset meets some.
BRIEF = {**SAMPLED, "max_tokens": 60}

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


class Footprint(NamedTuple):
    """What a worker holds, and how many connections all have to Redis."""

    num_fds: int
    num_threads: int
    num_clients: int

    @classmethod
    def of(cls, worker: TendedWorker, herd: Herd) -> "Footprint":
        num_clients = herd.jobs.redis.info("clients")["connected_clients"]
        return cls(worker.num_fds, worker.num_threads, num_clients)

    def fits(self, other: "Footprint") -> bool:
        """Whether it holds no more than the other did, but for what threads that share a pool may add."""
        most = other._replace(num_fds=other.num_fds + NUM_SPARE, num_clients=other.num_clients + NUM_SPARE)
        return all(mine <= theirs for mine, theirs in zip(self, most, strict=True))


def test_an_idle_worker_holds_no_more_after_resets_than_before_them(herd: Herd, figures: list[str]) -> None:
    (worker,) = herd.start_workers(1, is_behind_proxy=True)
    herd.jobs.results(herd.jobs.submit(8, BRIEF))
    before = Footprint.of(worker, herd)
    for _ in range(NUM_RESETS):
        job_ids = herd.jobs.submit(4, BRIEF)
        herd.jobs.wait_for_progress(job_ids)
        with network.reset(herd):
            herd.jobs.results()
    wait_until(lambda: Footprint.of(worker, herd).fits(before), f"hardly more held than {before}")
    figures.append(f"a worker before and after {NUM_RESETS} resets: {before}, {Footprint.of(worker, herd)}")
