"""Jobs that run, and jobs that wait, for longer than a worker believes a message can be lost."""

from pathlib import Path
from time import sleep

import pytest

from llama_herd.tasks.ledger.sweep import SWEEP_PATIENCE_MS
from llama_herd.tasks.protocol.events import Timings
from tests.chaos.harness.faults.long_waits import SILENT_S, backlog, long_jobs
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.sampling import SHORT

#: So many messages, for so long: a sweep that goes by age alone would have pushed each of them many times.
BACKLOG, BACKLOG_S = 50_000, 300.0

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_a_job_longer_than_a_message_may_be_silent_is_delivered_once(herd: Herd) -> None:
    herd.start_workers(2)
    with long_jobs(herd):  # says so when one is delivered again
        pass
    assert min(timing.total_s or 0.0 for timing in timings(herd)) > SILENT_S


def test_a_backlog_older_than_the_patience_of_the_sweep_is_pushed_once(herd: Herd) -> None:
    herd.start_workers(2)
    with backlog(herd):  # says so when a message is pushed again
        pass
    assert max(timing.queue_s or 0.0 for timing in timings(herd)) > SWEEP_PATIENCE_MS / 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_message_of_a_large_backlog_is_pushed_needlessly(
    server: FragileRedis, endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    with Herd(server, endless, tmp_path) as herd:
        (worker,) = herd.start_workers(1, step_s=0.05)
        herd.jobs.submit(BACKLOG, SHORT)
        sleep(BACKLOG_S)
        num_left = herd.jobs.redis.llen(herd.queue)
        assert "job put back into the queue" not in worker.log
        assert 0 < num_left < BACKLOG
    figures.append(f"backlog of {BACKLOG} jobs: {num_left} left after {BACKLOG_S:.0f} s, none pushed again")


def timings(herd: Herd) -> list[Timings]:
    return [result.timings for result in herd.jobs.results() if result.timings]
