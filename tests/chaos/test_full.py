"""A Redis without memory or disk: it refuses in words what is new, and what it has accepted is not lost."""

import signal

import pytest

from llama_herd.errors import RedisUnavailable
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.sampling import SAMPLED, SHORT
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_running_jobs_end_without_memory_and_new_ones_are_refused(herd: Herd) -> None:
    herd.start_workers(1)
    job_ids = herd.jobs.submit(4, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 20)
    with herd.server.full():
        with pytest.raises(RedisUnavailable, match="full"):
            herd.jobs.client.submit(prompt="too much")
        assert {result.attempts for result in herd.jobs.results()} == {1}


def test_running_jobs_wait_for_disk_and_new_ones_are_refused(herd: Herd) -> None:
    (worker,) = herd.start_workers(1)
    job_ids = herd.jobs.submit(4, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 20)
    with herd.server.disk_full():
        wait_until(lambda: "Redis takes no events" in worker.log, "worker notices")
        with pytest.raises(RedisUnavailable, match="disk"):
            herd.jobs.client.submit(prompt="too much")
    assert {result.attempts for result in herd.jobs.results()} == {1}
    assert worker.is_alive


def test_jobs_that_have_filled_redis_are_run_and_cancelled(herd: Herd) -> None:
    worker = frozen_worker(herd)
    *job_ids, cancelled = herd.jobs.submit(5, SHORT)
    with herd.server.full():
        assert herd.jobs.client.cancel(cancelled)
        worker.signal(signal.SIGCONT)
        reasons = {result.job: result.finish_reason for result in herd.jobs.results()}
    assert reasons == dict.fromkeys(job_ids, "length") | {cancelled: "cancelled"}
    assert worker.is_alive


def test_what_cannot_be_read_becomes_a_dead_letter_while_redis_is_full(herd: Herd) -> None:
    worker = frozen_worker(herd)
    herd.jobs.redis.lpush(herd.queue, b"no message")
    with herd.server.full():
        worker.signal(signal.SIGCONT)
        wait_until(herd.jobs.client.dead, "it is a dead letter")
    assert worker.is_alive


def frozen_worker(herd: Herd) -> TendedWorker:
    """A worker that is frozen, and takes no message."""
    (worker,) = herd.start_workers(1)
    worker.signal(signal.SIGSTOP)
    return worker
