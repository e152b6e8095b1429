"""Jobs that are ended early, at every moment: one final event, and the state that fits."""

from collections import Counter
from random import Random
from time import sleep, time

import pytest

from llama_herd.tasks.ledger.answers import Cancellation
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.chaos.sampling import LONG, SAMPLED

#: Over within some tens of milliseconds.
BRIEF = {**SAMPLED, "max_tokens": 10}
EVERY_ANSWER = set(Cancellation) - {Cancellation.UNKNOWN}

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


@pytest.mark.parametrize("num_jobs", [400, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_whatever_ends_jobs_early_races_their_whole_way_and_each_ends_once(
    herd: Herd, figures: list[str], num_jobs: int
) -> None:
    herd.start_workers(2, step_s=0.002, slots=4, remote_control=True)
    haste = Haste(herd, Random(0))
    while len(herd.jobs.accepted) < num_jobs or not haste.answers >= EVERY_ANSWER:
        haste.rng.choice([haste.cancel, haste.revoke, haste.deadline, haste.expires])()
    ends = Counter(result.finish_reason for result in herd.jobs.results())
    assert ends.keys() == {"length", "cancelled", "deadline"}
    figures.append(f"{ends.total()} jobs that race cancels, revokes, deadlines and expires: {dict(ends)}")


class Haste:
    """Submits jobs and ends them early, at any moment from before their claim until after their end."""

    def __init__(self, herd: Herd, rng: Random) -> None:
        self.rng = rng
        self.answers = set[Cancellation]()
        self._herd = herd
        self._jobs = herd.jobs

    def cancel(self) -> None:
        """This one, or any of the last few."""
        (job_id,) = self._jobs.submit(1, BRIEF)
        sleep(self._moment_s())
        recent = [job_id, *list(self._jobs.accepted)[-8:]]
        answer = self._jobs.client.cancel(self.rng.choice(recent))
        self.answers.add(answer)

    def revoke(self) -> None:
        (job_id,) = self._jobs.submit(1, BRIEF)
        sleep(self._moment_s())
        self._herd.jobs.celery.control.revoke(job_id, terminate=True)

    def deadline(self) -> None:
        seconds, micros = self._jobs.redis.time()
        deadline_ms = 1000 * seconds + micros // 1000 + int(1000 * self._moment_s())
        self._jobs.submit(1, BRIEF, deadline_ms=deadline_ms)

    def expires(self) -> None:
        self._jobs.send_bare({"sampling": BRIEF}, expires=self._moment_s())

    def _moment_s(self) -> float:
        return self.rng.choice([0, 0.002, 0.01, 0.03, 0.1])


def test_deadlines_end_waiting_and_running_jobs(herd: Herd) -> None:
    herd.start_workers(1, slots=2)
    seconds, _ = herd.jobs.redis.time()
    rng = Random(0)
    for number in range(40):  # every tenth has time enough on the slowest machine
        deadline_ms = 1000 * seconds + (rng.randint(300, 3000) if number % 10 else 1000 * round(PATIENCE_S))
        herd.jobs.submit(1, {**SAMPLED, "max_tokens": 30}, deadline_ms=deadline_ms)
    assert {result.finish_reason for result in herd.jobs.results()} == {"deadline", "length"}


def test_a_job_cancelled_while_its_worker_is_dead_is_ended_by_the_next_one(herd: Herd) -> None:
    (victim,) = herd.start_workers(1)
    job_ids = herd.jobs.submit(3, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 10)
    victim.kill()
    for job_id in job_ids:
        herd.jobs.client.cancel(job_id)
    herd.start_workers(1)
    assert {result.finish_reason for result in herd.jobs.results()} == {"cancelled"}


def test_a_job_that_began_in_time_goes_on_though_celery_would_end_it(herd: Herd) -> None:
    """Its message has expired by the time that the dead worker's successor gets it."""
    (victim,) = herd.start_workers(1)
    expires_s = time() + 2
    job_id = herd.jobs.send_bare({"sampling": LONG}, expires=2)
    herd.jobs.wait_for([job_id], "n", 10)
    victim.kill()
    wait_until(lambda: time() > expires_s + 1, "expired")
    herd.start_workers(1)
    (result,) = herd.jobs.results()
    assert (result.finish_reason, result.attempts) == ("length", 2)
