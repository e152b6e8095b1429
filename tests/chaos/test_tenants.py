"""Workers of two tenants die: the jobs of both go on in another, and none is blamed for the other's."""

from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.tasks.ledger.keys import Keys
from tests.chaos.harness.faults.death import poisoned
from tests.chaos.harness.herd import STEP_S, Herd
from tests.chaos.harness.jobs import Jobs
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.harness.sabotage import Sabotage
from tests.chaos.sampling import SAMPLED

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


@pytest.fixture
def others(herd: Herd) -> Iterator[Jobs]:
    """The jobs of a second tenant, which the herd's workers serve besides."""
    herd.settings = herd.settings.model_copy(update={"tenants": "acme,default"})
    jobs = Jobs(herd.settings.for_queue("herd.acme:tales"))
    yield jobs
    jobs.close()


def test_a_killed_workers_jobs_go_on_in_another_under_either_tenant(herd: Herd, others: Jobs) -> None:
    herd.start_workers(2, sabotage=Sabotage(silent_s=3, step_s=STEP_S))
    job_ids = {jobs: jobs.submit(8, SAMPLED) for jobs in (herd.jobs, others)}
    for jobs, ids in job_ids.items():
        jobs.wait_for_progress(ids)
    victim = herd.busiest()
    victim.kill()
    orphans = {jobs: set(jobs.running(victim.name)) for jobs in job_ids}
    need(all(orphans.values()), "jobs of both run")
    for jobs, ids in job_ids.items():
        results = jobs.results(ids)
        assert {result.finish_reason for result in results} == {"length"}
        assert {result.job for result in results if result.attempts == 2} == orphans[jobs]
    with Redis.from_url(herd.server.url) as redis:
        held = Keys("acme+default").unacked_key
        wait_until(lambda: not redis.exists(held), "what it held is put back")


def test_a_job_that_kills_its_worker_takes_no_blame_to_the_other_tenant(herd: Herd, others: Jobs) -> None:
    herd.settings = herd.settings.model_copy(update={"lease_ms": 1500})  # three of them have to end
    herd.start_worker()
    mates = others.submit(3, {**SAMPLED, "max_tokens": 40})
    with poisoned("poison-forward")(herd):
        assert {result.finish_reason for result in others.results(mates)} == {"length"}
    assert len(herd.killed) == 3
