"""A worker with hundreds of jobs in hand dies: all are back at once, and those that it ran are counted."""

from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from benchmarks.takeover import MANY, first_in_queue
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.sabotage import Sabotage
from tests.chaos.harness.stand_in import StandInReference
from tests.chaos.sampling import SAMPLED
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

NUM_SLOTS = 256
NUM_IN_HAND = NUM_SLOTS + NUM_LOOK_AHEAD
#: Fewer tokens than make an attempt sound, so slow that none has them all before the kill.
BRIEF, SLOW_S = {**SAMPLED, "max_tokens": 16}, 0.5

#: Longer than the lease of 3 s and two sweeps; the goal is 5 s on a machine that is not busy.
LIMIT_S = 25.0


def test_only_jobs_that_ran_are_counted_when_workers_of_256_slots_die_in_a_row(
    server: FragileRedis, endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    settings: dict[str, Any] = {
        "slots": NUM_SLOTS,
        "kv_cache_tokens": 128 * NUM_SLOTS,
        "prefill_tokens": MANY,
    }
    with Herd(server, endless, tmp_path, reference=StandInReference(), **settings) as herd:
        slow, fast = Sabotage(stand_in=True, step_s=SLOW_S), Sabotage(stand_in=True)
        (victim,) = herd.start_workers(1, sabotage=slow)
        herd.start_workers(1, sabotage=slow, model_name="another", slots=1)  # it sweeps
        job_ids = herd.jobs.submit(NUM_IN_HAND, BRIEF)
        deaths = Counter[str]()
        for epoch, sabotage in ((1, slow), (2, fast)):
            killed_s = kill_at_work(herd, victim, job_ids, epoch)
            deaths.update(computing(herd, job_ids, epoch))
            wait_until(lambda: set(first_in_queue(herd, NUM_IN_HAND)) == set(job_ids), "all are back")
            back_s = monotonic() - killed_s
            assert back_s < LIMIT_S
            figures.append(f"{NUM_IN_HAND} jobs are back {back_s:.1f} s after their worker's death")
            (victim,) = herd.start_workers(1, sabotage=sabotage)
            herd.jobs.wait_for(job_ids, "epoch", epoch + 1)
            assert herd.jobs.numbers(job_ids, "deaths") == [deaths[job_id] for job_id in job_ids]
        assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
        assert herd.verdict().violations == ()


def kill_at_work(herd: Herd, victim: TendedWorker, job_ids: list[str], epoch: int) -> float:
    """Kill a worker that computes as much as it can; when that was."""
    wait_until(lambda: len(computing(herd, job_ids, epoch)) == NUM_SLOTS, "all rows run")
    victim.kill()
    return monotonic()


def computing(herd: Herd, job_ids: list[str], epoch: int) -> list[str]:
    """Those that are computed by their claim of this number, once none is being prepared; else nobody."""
    if any(herd.jobs.numbers(job_ids, "preparing")):
        return []
    pairs = zip(job_ids, herd.jobs.numbers(job_ids, "computing"), strict=True)
    return [job_id for job_id, number in pairs if number == epoch]
