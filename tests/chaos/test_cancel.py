"""Jobs that are ended early, at every moment: one final event, and the state that fits."""

import random
from time import sleep

import pytest

from llama_herd.tasks.answers import Cancellation
from tests.chaos.herd import SAMPLED, Herd

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_cancels_that_race_the_whole_way_of_a_job_end_it_once(herd: Herd) -> None:
    herd.workers(1, step_s=0, slots=4)
    rng = random.Random(0)
    answers = set()
    for _ in range(200):
        (job_id,) = herd.submit(1, {**SAMPLED, "max_tokens": 10})
        sleep(rng.choice([0, 0.002, 0.01, 0.03]))  # anywhere between submit and end
        answers.add(herd.client.cancel(rng.choice([job_id, rng.choice(herd.job_ids)])))
    assert answers == {Cancellation.CANCELLED, Cancellation.ASKED, Cancellation.FINISHED}
    assert {result.finish_reason for result in herd.results()} == {"cancelled", "length"}
    herd.check()


def test_deadlines_end_waiting_and_running_jobs(herd: Herd) -> None:
    herd.workers(1, slots=2)
    seconds, _ = herd.redis.time()
    rng = random.Random(0)
    for _ in range(40):
        herd.submit(1, {**SAMPLED, "max_tokens": 30}, deadline_ms=1000 * seconds + rng.randint(500, 6000))
    assert {result.finish_reason for result in herd.results()} == {"deadline", "length"}
    herd.check()


def test_a_job_cancelled_while_its_worker_is_dead_is_ended_by_the_next_one(herd: Herd) -> None:
    (victim,) = herd.workers(1)
    job_ids = herd.submit(3)
    herd.wait_for_tokens(job_ids, 10)
    victim.kill()
    for job_id in job_ids:
        herd.client.cancel(job_id)
    herd.workers(1)
    assert {result.finish_reason for result in herd.results()} == {"cancelled"}
    herd.check()
