"""Clocks that are wrong by an hour, or jump by one: messages may come twice, jobs never run twice."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.chaos.harness.faults.clocks import HOUR_S, skewed
from tests.chaos.harness.faults.death import kill_worker
from tests.chaos.harness.faults.redis_faults import keeping_owners
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.sampling import LONG, SHORT
from tests.chaos.skewed_redis import SkewedRedis, has_compiler

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_workers_with_wrong_clocks_take_no_job_from_others_and_lose_none(herd: Herd) -> None:
    (right,) = herd.start_workers(1, step_s=0.03)
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
        herd.start_workers(2)
        herd.jobs.wait_for(herd.jobs.submit(6, LONG), "n", 10)
        with keeping_owners(herd) as met:  # says so when a job has changed hands
            for ahead_s in (3600, 0):
                skewed_redis.move_clock(ahead_s)
                herd.jobs.wait_for_progress(met, 50)
        with kill_worker(herd) as orphans:
            need(orphans, "some jobs run")
            herd.jobs.wait_for_progress(orphans)
        assert herd.verdict().violations == ()


@pytest.mark.parametrize(("before_s", "after_s"), [(0, 600), (600, 0), (600, -600)])
def test_a_death_at_the_moment_of_a_jump_costs_two_leases_at_most(
    skewed_redis: SkewedRedis,
    endless: Path,
    tmp_path: Path,
    figures: list[str],
    before_s: int,
    after_s: int,
) -> None:
    """By then all that was in its hands has a live owner: jobs that ran, and messages not claimed yet."""
    skewed_redis.move_clock(before_s)
    with Herd(skewed_redis, endless, tmp_path, slots=32) as herd:  # one worker has room for all that is left
        herd.start_workers(2)
        jobs = herd.jobs.submit(60, SHORT)
        herd.jobs.wait_for(jobs[:6], "n", 3)
        skewed_redis.move_clock(after_s)
        victim = herd.busiest()
        victim.kill()
        died_s, two_leases_s = monotonic(), 2 * herd.settings.lease_ms / 1000
        left = {job_id for job_id in jobs if not herd.jobs.has_ended(job_id)}

        def all_are_taken() -> bool:
            records = {job_id: herd.jobs.record(job_id) for job_id in left}
            left.difference_update(
                job_id
                for job_id, record in records.items()
                if record and (record.is_final or (record.epoch > 0 and record.worker != victim.name))
            )
            return not left

        wait_until(all_are_taken, "each job is in live hands", two_leases_s)
        took_s = monotonic() - died_s
        figures.append(f"clock moved from {before_s:+} to {after_s:+} s at a death: {took_s:.1f} s")
        assert herd.verdict().violations == ()
