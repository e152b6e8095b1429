"""Jobs that run, and jobs that wait, for longer than kombu or the sweep believe a message can be held."""

from pathlib import Path
from time import sleep

import pytest

from llama_herd.tasks.ledger import SWEEP_PATIENCE_MS
from llama_herd.worker.chaos.fragile_redis import FragileRedis
from llama_herd.worker.chaos.herd import STEP_S, Herd
from llama_herd.worker.chaos.sabotage import Sabotage
from tests.chaos.sampling import SAMPLED, SHORT

#: So many messages, for so long: a sweep that goes by age alone would have pushed each of them many times.
BACKLOG, BACKLOG_S = 50_000, 300.0

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_a_job_longer_than_the_visibility_timeout_is_delivered_once(herd: Herd) -> None:
    (busy,) = herd.workers(1, sabotage=Sabotage(step_s=0.05, visibility_s=2))
    herd.jobs.submit(4, {**SAMPLED, "max_tokens": 130})
    herd.jobs.wait_for(list(herd.jobs.accepted), "n", 1)
    herd.workers(1, sabotage=Sabotage(step_s=STEP_S, visibility_s=2))
    assert {result.worker for result in herd.jobs.results()} == {busy.name}
    assert "cmdstat_rpush" not in herd.jobs.redis.info("commandstats"), "kombu has put a message back"


def test_a_backlog_older_than_the_patience_of_the_sweep_is_pushed_once(herd: Herd) -> None:
    (worker,) = herd.workers(1, slots=1)
    herd.jobs.submit(30, SHORT)
    assert longest_wait_s(herd) > SWEEP_PATIENCE_MS / 1000
    assert num_pushed_again(worker.log) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_message_of_a_large_backlog_is_pushed_needlessly(
    server: FragileRedis, endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    with Herd(server, endless, tmp_path) as herd:
        (worker,) = herd.workers(1, step_s=0.05)
        herd.jobs.submit(BACKLOG, SHORT)
        sleep(BACKLOG_S)
        num_left = herd.jobs.redis.llen(herd.queue)
        assert num_pushed_again(worker.log) == 0
        assert 0 < num_left < BACKLOG
    figures.append(f"backlog of {BACKLOG} jobs: {num_left} left after {BACKLOG_S:.0f} s, none pushed again")


def longest_wait_s(herd: Herd) -> float:
    timings = [result.timings for result in herd.jobs.results()]
    return max(timing.queue_s or 0.0 for timing in timings if timing)


def num_pushed_again(log: str) -> int:
    return log.count("job put back into the queue")
