"""Workers that stand still for longer than their lease, and wake up to a world that went on without them."""

import signal

import pytest

from llama_herd.tasks.events import Started
from tests.chaos.herd import SAMPLED, Herd
from tests.worker.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

LONG = {**SAMPLED, "max_tokens": 450}


def test_a_zombies_writes_are_refused_and_it_takes_over_when_the_new_owner_dies(herd: Herd) -> None:
    (zombie,) = herd.workers(1)
    job_ids = herd.submit(4, LONG)
    herd.wait_for_tokens(job_ids, 20)
    zombie.signal(signal.SIGSTOP)
    (successor,) = herd.workers(1)
    herd.wait_for_epoch(job_ids, 2)
    herd.wait_for_progress(job_ids)
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: zombie.log.count("job is lost") == len(job_ids), "the zombie's writes refused")
    herd.wait_for_progress(job_ids)
    successor.kill()
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", LONG)
        assert starts(herd, result.job) == [zombie.name, successor.name, zombie.name]
    herd.check()


def starts(herd: Herd, job_id: str) -> list[str]:
    return [event.worker for event in herd.events(job_id) if isinstance(event, Started)]


@pytest.mark.parametrize("num_jobs", [1, 20], ids=["empty queue", "full queue"])
def test_a_message_in_the_hands_of_a_frozen_worker_is_not_lost(herd: Herd, num_jobs: int) -> None:
    (frozen,) = herd.workers(1)
    freeze_while_it_waits(herd, frozen)
    job_ids = herd.submit(num_jobs, {**SAMPLED, "max_tokens": 20})
    assert herd.redis.llen("herd.endless") == num_jobs - 1, "it has taken one"
    frozen.kill()
    herd.workers(1)
    assert {result.finish_reason for result in herd.results(job_ids)} == {"length"}
    herd.check()


def freeze_while_it_waits(herd: Herd, worker: WorkerProcess) -> None:
    """Stop a worker that has asked Redis for a message and waits for it."""

    def is_frozen() -> bool:
        worker.signal(signal.SIGSTOP)
        if herd.redis.info("clients")["blocked_clients"]:
            return True
        worker.signal(signal.SIGCONT)
        return False

    wait_until(is_frozen, "worker frozen in BRPOP")
