"""A Redis without memory: what is accepted waits, what is not is refused in words."""

import signal

import pytest

from llama_herd.errors import RedisUnavailable
from tests.chaos.herd import SAMPLED, Herd
from tests.worker.processes import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_running_jobs_wait_for_memory_and_new_ones_are_refused(herd: Herd) -> None:
    (worker,) = herd.workers(1)
    job_ids = herd.submit(4)
    herd.wait_for_tokens(job_ids, 20)
    herd.redis.config_set("maxmemory", 1)
    wait_until(lambda: "redis is full" in worker.log, "worker notices")
    with pytest.raises(RedisUnavailable, match="full"):
        herd.client.submit(prompt="too much")
    herd.redis.config_set("maxmemory", 0)
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", SAMPLED)
        assert result.attempts == 1
    herd.check()


def test_a_message_taken_while_redis_is_full_is_not_lost_and_its_worker_lives(herd: Herd) -> None:
    (worker,) = herd.workers(1)
    wait_until(lambda: herd.redis.info("clients")["blocked_clients"], "worker asks for messages")
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: not herd.redis.info("clients")["blocked_clients"], "no message asked for")
    job_ids = herd.submit(4, {**SAMPLED, "max_tokens": 20})
    herd.redis.config_set("maxmemory", 1)
    worker.signal(signal.SIGCONT)
    wait_until(lambda: herd.redis.llen("herd.endless") < len(job_ids), "a message taken")
    wait_until(lambda: "redis refuses a claim" in worker.log, "worker notices")
    herd.redis.config_set("maxmemory", 0)
    assert {result.finish_reason for result in herd.results()} == {"length"}
    assert worker.process.poll() is None
    herd.check()
