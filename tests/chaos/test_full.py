"""A Redis without memory or disk: what is accepted waits, what is not is refused in words."""

import signal

import pytest

from llama_herd.errors import RedisUnavailable
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.sampling import SAMPLED, SHORT

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
        wait_until(lambda: "Redis is full" in worker.log, "worker notices")
        with pytest.raises(RedisUnavailable, match="disk"):
            herd.jobs.client.submit(prompt="too much")
    assert {result.attempts for result in herd.jobs.results()} == {1}
    assert worker.is_alive


def test_a_message_taken_while_redis_is_full_is_not_lost_and_its_worker_lives(herd: Herd) -> None:
    (worker,) = herd.start_workers(1)
    clients = herd.jobs.redis
    wait_until(lambda: clients.info("clients")["blocked_clients"], "worker asks for messages")
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: not clients.info("clients")["blocked_clients"], "no message asked for")
    job_ids = herd.jobs.submit(4, SHORT)
    with herd.server.full():
        worker.signal(signal.SIGCONT)
        wait_until(lambda: clients.llen(herd.queue) < len(job_ids), "a message taken")
        wait_until(lambda: "Redis refused a claim" in worker.log, "worker notices")
    assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
    assert worker.is_alive
