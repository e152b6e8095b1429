"""Jobs that run for longer than kombu believes a message can be held."""

import pytest

from tests.chaos.herd import SAMPLED, Herd

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_a_job_longer_than_the_visibility_timeout_is_delivered_once(herd: Herd) -> None:
    busy = herd.workers(1, step_s=0.05, visibility_s=7)[0]
    herd.submit(4, {**SAMPLED, "max_tokens": 300})
    herd.wait_for_tokens(herd.job_ids)
    herd.workers(1, visibility_s=7)
    assert {result.worker for result in herd.results()} == {busy.name}
    assert "cmdstat_rpush" not in herd.redis.info("commandstats"), "kombu has put a message back"
    herd.check()
