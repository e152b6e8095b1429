"""Workers that stand still for longer than their lease, and wake up to a world that went on without them."""

import signal

import pytest

from llama_herd.tasks.ledger.ledger import SOUND_TOKENS
from tests.chaos.harness.faults.long_waits import SILENT_S
from tests.chaos.harness.faults.standstill import die_waiting, freeze, frozen
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.harness.sabotage import Sabotage
from tests.chaos.sampling import LONG, SHORT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

#: Takes messages for lost soon, and its jobs last until the test has seen what it wants to see.
IMPATIENT = Sabotage(silent_s=SILENT_S, step_s=0.1)
#: The line of the log about a job whose writes are refused.
LEFT = "job left this worker"


def test_a_zombies_writes_are_refused_and_it_takes_over_when_the_new_owner_dies(herd: Herd) -> None:
    (zombie,) = herd.start_workers(1)
    job_ids = herd.jobs.submit(4, LONG)
    herd.jobs.wait_for(job_ids, "n", 20)
    with freeze(herd) as met:
        need(sorted(met) == sorted(job_ids), "all jobs run")
        (successor,) = herd.start_workers(1, step_s=0.03)  # slow, lest it be done before it is killed
        herd.jobs.wait_for(job_ids, "epoch", 2)
        herd.jobs.wait_for_progress(job_ids)
    wait_until(lambda: zombie.log.count(LEFT) == len(job_ids), "the zombie's writes refused")
    herd.jobs.wait_for_progress(job_ids, SOUND_TOKENS)  # lest they go on one by one, as suspects do
    successor.kill()
    herd.jobs.results()
    assert {tuple(herd.jobs.starts(job_id)) for job_id in job_ids} == {
        (zombie.name, successor.name, zombie.name)
    }


def test_a_zombie_without_a_chance_leaves_its_jobs_and_their_messages_alone(herd: Herd) -> None:
    """It wakes up when all is over: no result is stored again, no message is rejected away."""
    (zombie,) = herd.start_workers(1, step_s=0.03)  # slow, lest it be done before it is frozen
    job_ids = herd.jobs.submit(4, {**LONG, "max_tokens": 100})
    herd.jobs.wait_for(job_ids, "n", 20)
    zombie.signal(signal.SIGSTOP)
    (successor,) = herd.start_workers(1)
    assert {result.worker for result in herd.jobs.results()} == {successor.name}
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: zombie.log.count(LEFT) == len(job_ids), "the zombie's writes refused")
    assert {result.worker for result in herd.jobs.results()} == {successor.name}


def test_a_zombie_leaves_messages_alone_that_were_put_back_for_its_successor(herd: Herd) -> None:
    """To reject or acknowledge one would take it away from who has it now."""
    (zombie,) = herd.start_workers(1, sabotage=IMPATIENT)
    job_ids = herd.jobs.submit(4, LONG)
    herd.jobs.wait_for(job_ids, "n", 5)
    lost = held(herd)
    with frozen([zombie]):
        (successor,) = herd.start_workers(1, sabotage=IMPATIENT)
        herd.jobs.wait_for(job_ids, "epoch", 2)
        wait_until(lambda: not lost & held(herd), "all are put back, besides what a sweep may push")
        wait_until(lambda: not herd.jobs.redis.llen(herd.queue), "its successor takes them all")
        taken = held(herd)
        assert len(lost) == len(job_ids) <= len(taken)
    wait_until(lambda: zombie.log.count(LEFT) == len(job_ids), "the zombie's writes refused")
    zombie.stop()  # it has said all by then
    assert not any(map(herd.jobs.has_ended, job_ids))
    assert taken <= held(herd)
    for job_id in job_ids:
        herd.jobs.client.cancel(job_id)  # all is seen
    assert {result.worker for result in herd.jobs.results()} == {successor.name}


def held(herd: Herd) -> set[bytes]:
    """Tags of the messages that workers have taken and not acknowledged."""
    return set(herd.jobs.redis.hkeys(herd.jobs.ledger.unacked_key))


@pytest.mark.parametrize("num_jobs", [0, 20], ids=["empty queue", "full queue"])
def test_a_message_that_comes_to_frozen_workers_is_not_lost_with_them(herd: Herd, num_jobs: int) -> None:
    herd.start_workers(1)
    with die_waiting(herd):
        herd.jobs.submit(num_jobs, SHORT)
        assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
