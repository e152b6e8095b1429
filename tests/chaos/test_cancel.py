"""Jobs that are ended early, at every moment: one final event, and the state that fits."""

import random
from datetime import UTC, datetime, timedelta
from time import sleep

import pytest

from llama_herd.tasks.answers import Cancellation
from llama_herd.tasks.app import make_app
from llama_herd.tasks.message import TASK_NAME
from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.patience import wait_until
from tests.chaos.sampling import LONG, SAMPLED

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_cancels_that_race_the_whole_way_of_a_job_end_it_once(herd: Herd) -> None:
    herd.workers(1, step_s=0, slots=4)
    rng = random.Random(0)
    answers, job_ids = set(), list[str]()
    for _ in range(200):
        job_ids += herd.jobs.submit(1, {**SAMPLED, "max_tokens": 10})
        sleep(rng.choice([0, 0.002, 0.01, 0.03]))  # anywhere between submit and end
        answers.add(herd.jobs.client.cancel(rng.choice([job_ids[-1], rng.choice(job_ids)])))
    assert answers == {Cancellation.CANCELLED, Cancellation.ASKED, Cancellation.FINISHED}
    assert {result.finish_reason for result in herd.jobs.results()} == {"cancelled", "length"}


def test_deadlines_end_waiting_and_running_jobs(herd: Herd) -> None:
    herd.workers(1, slots=2)
    seconds, _ = herd.jobs.redis.time()
    rng = random.Random(0)
    for _ in range(40):
        deadline_ms = 1000 * seconds + rng.randint(500, 6000)
        herd.jobs.submit(1, {**SAMPLED, "max_tokens": 30}, deadline_ms=deadline_ms)
    assert {result.finish_reason for result in herd.jobs.results()} == {"deadline", "length"}


def test_a_job_cancelled_while_its_worker_is_dead_is_ended_by_the_next_one(herd: Herd) -> None:
    (victim,) = herd.workers(1)
    job_ids = herd.jobs.submit(3, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 10)
    victim.kill()
    for job_id in job_ids:
        herd.jobs.client.cancel(job_id)
    herd.workers(1)
    assert {result.finish_reason for result in herd.jobs.results()} == {"cancelled"}


def test_a_job_that_celery_ends_ends_for_subscribers_too(herd: Herd) -> None:
    """Its message has expired by the time that the dead worker's successor gets it: Celery revokes it."""
    (victim,) = herd.workers(1)
    fields = {"prompt": "a tale", "sampling": LONG}
    expires = datetime.now(UTC) + timedelta(seconds=2)
    sent = make_app(herd.settings).send_task(TASK_NAME, kwargs=fields, queue=herd.queue, expires=expires)
    herd.jobs.adopt(sent.id, fields)
    herd.jobs.wait_for([sent.id], "n", 10)
    victim.kill()
    wait_until(lambda: datetime.now(UTC) > expires, "expired")
    herd.workers(1)
    (result,) = herd.jobs.results()
    assert result.finish_reason == "deadline"
    assert len(result.ids) >= 10
