"""Clocks that are wrong by an hour, or jump by one: messages may come twice, jobs never run twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_herd.chaos.faults.clocks import HOUR_S, skewed
from llama_herd.chaos.faults.death import kill
from llama_herd.chaos.faults.redis_faults import keeping_owners
from llama_herd.chaos.herd import Herd
from tests.chaos.sampling import LONG
from tests.chaos.skewed_redis import SkewedRedis, has_compiler

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_workers_with_wrong_clocks_take_no_job_from_others_and_lose_none(herd: Herd) -> None:
    (right,) = herd.workers(1, step_s=0.03)
    herd.jobs.wait_for(herd.jobs.submit(4, LONG), "n", 1)
    # Each says so when a job has changed hands.
    with skewed(HOUR_S)(herd) as met, skewed(-HOUR_S)(herd):
        herd.jobs.wait_for_progress(met)
    assert {result.worker for result in herd.jobs.results(met)} == {right.name}


@pytest.fixture
def skewed_redis(tmp_path: Path) -> Iterator[SkewedRedis]:
    if not has_compiler():
        pytest.skip("no C compiler, so the clock of Redis cannot be moved")
    with SkewedRedis(tmp_path) as server:
        yield server


def test_no_lease_ends_early_or_late_when_the_clock_of_redis_jumps(
    skewed_redis: SkewedRedis, endless: Path, tmp_path: Path
) -> None:
    with Herd(skewed_redis, endless, tmp_path) as herd:
        herd.workers(2)
        herd.jobs.wait_for(herd.jobs.submit(6, LONG), "n", 10)
        with keeping_owners(herd) as met:  # says so when a job has changed hands
            for ahead_s in (3600, 0):
                skewed_redis.move_clock(ahead_s)
                herd.jobs.wait_for_progress(met, 50)
        with kill(herd) as orphans:
            assert orphans
            herd.jobs.wait_for_progress(orphans)
        assert herd.verdict().violations == ()
