"""A Redis without memory or disk: what is accepted waits, what is not is refused in words."""

import signal

import pytest

from llama_herd.errors import RedisUnavailable
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.sampling import SAMPLED, SHORT
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_running_jobs_wait_for_memory_and_new_ones_are_refused(herd: Herd) -> None:
    (worker,) = herd.start_workers(1)
    job_ids = herd.jobs.submit(4, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 20)
    with herd.server.full():
        wait_until(lambda: "Redis is full" in worker.log, "worker notices")
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


def test_a_message_taken_while_redis_is_full_is_not_lost_and_its_worker_lives(herd: Herd) -> None:
    worker = frozen_worker(herd)
    job_ids = herd.jobs.submit(4, SHORT)
    with herd.server.full():
        worker.signal(signal.SIGCONT)
        wait_until(lambda: herd.jobs.redis.llen(herd.queue) < len(job_ids), "a message taken")
        wait_until(lambda: "Redis takes no claims" in worker.log, "worker notices")
    assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
    assert worker.is_alive


def test_what_cannot_be_read_while_redis_is_full_becomes_a_dead_letter_later(herd: Herd) -> None:
    worker = frozen_worker(herd)
    herd.jobs.redis.lpush(herd.queue, b"no message")
    with herd.server.full():
        worker.signal(signal.SIGCONT)
        wait_until(lambda: not herd.jobs.redis.llen(herd.queue), "it is taken")
        wait_until(lambda: "message put aside" in worker.log, "it is read")
    wait_until(herd.jobs.client.dead, "it is a dead letter")
    assert worker.is_alive


def frozen_worker(herd: Herd) -> TendedWorker:
    """A worker that is frozen, and takes no message."""
    (worker,) = herd.start_workers(1)
    worker.signal(signal.SIGSTOP)
    return worker
