"""Faults between workers and Redis: connections that break, stall, crawl and lose replies."""

import pytest

from tests.chaos.harness.faults import network
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need
from tests.chaos.sampling import SAMPLED, SHORT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_reset_connections_disturb_no_job(herd: Herd) -> None:
    workers = herd.start_workers(2, is_behind_proxy=True)
    job_ids = herd.jobs.submit(6, SAMPLED)
    for _ in range(5):
        herd.jobs.wait_for_progress(job_ids[:2], 10)
        with network.reset(herd) as met:  # says so when a job has changed hands
            herd.jobs.wait_for_progress(met)
    assert {result.attempts for result in herd.jobs.results()} == {1}
    assert all(worker.is_alive for worker in workers)


def test_lost_replies_write_nothing_twice(herd: Herd) -> None:
    (worker,) = herd.start_workers(1, is_behind_proxy=True)
    job_ids = herd.jobs.submit(6, SAMPLED)
    for _ in range(5):
        herd.jobs.wait_for_progress(job_ids[:2], 5)
        with network.cut_replies(herd) as met:  # says so when a job has changed hands
            herd.jobs.wait_for_progress(met)
    assert {result.attempts for result in herd.jobs.results()} == {1}
    assert worker.is_alive


def test_a_bad_line_costs_time_only(herd: Herd) -> None:
    herd.start_workers(1, is_behind_proxy=True)
    for strike in (network.slow, network.crawl):
        with strike(herd):
            herd.jobs.submit(4, {**SAMPLED, "max_tokens": 100})
            assert {result.attempts for result in herd.jobs.results()} == {1}


def test_a_worker_in_a_black_hole_loses_its_jobs_cleanly_and_consumes_again(herd: Herd) -> None:
    # So slow that it is not done before the other one is there, and the fault.
    (away,) = herd.start_workers(1, is_behind_proxy=True, step_s=0.1)
    job_ids = herd.jobs.submit(4, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 5)
    (rescuer,) = herd.start_workers(1)
    with network.black_hole(herd) as met:
        need(sorted(met) == sorted(job_ids), "all jobs run")
        herd.jobs.wait_for(job_ids, "epoch", 2)
    assert {result.worker for result in herd.jobs.results()} == {rescuer.name}
    rescuer.stop()
    (again,) = herd.jobs.submit(1, SHORT)
    herd.jobs.results([again])
    assert herd.jobs.starts(again) == [away.name]


def test_a_black_hole_meets_no_job_that_only_workers_in_it_can_run(herd: Herd) -> None:
    """Nobody could go on with it, as with jobs of a model that one worker serves."""
    herd.start_workers(1, is_behind_proxy=True, step_s=0.1)
    job_ids = herd.jobs.submit(2, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 5)
    with network.black_hole(herd) as met:
        need(not met, "no job is met")
    herd.jobs.results()
