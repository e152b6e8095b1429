"""Redis goes away under a running herd, comes back, and may have forgotten things."""

import os
import signal
from pathlib import Path
from time import monotonic, sleep

import pytest

from llama_herd.worker.embedded_redis import EmbeddedRedis
from tests.chaos.herd import SAMPLED, Herd
from tests.worker.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

#: Longer than a lease of 3 s.
PAUSE_S = 5.0


def assert_undisturbed(herd: Herd, workers: list[WorkerProcess]) -> None:
    """All jobs have the ids of an uninterrupted run, none has changed hands, and no worker has ended."""
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", SAMPLED)
        assert result.attempts == 1
    herd.check()
    assert [worker.process.poll() for worker in workers] == [None] * len(workers)


def seconds_to_catch_up(herd: Herd, before: dict[str, int]) -> float:
    """From now until each job has clearly more tokens than before the fault."""
    started_s = monotonic()
    wait_until(lambda: all(herd.num_tokens(job_id) >= n + 10 for job_id, n in before.items()), "progress")
    return monotonic() - started_s


def tokens_of_running_jobs(herd: Herd) -> dict[str, int]:
    """Start some jobs; how many tokens each has once all run."""
    job_ids = herd.submit(6)
    herd.wait_for_tokens(job_ids, 10)
    return {job_id: herd.num_tokens(job_id) for job_id in job_ids}


def assert_consumes(herd: Herd) -> None:
    """A job that comes after the fault runs, too."""
    herd.results(herd.submit(1))


def test_a_redis_that_is_killed_and_started_again_loses_nothing(
    herd: Herd, server: EmbeddedRedis, figures: list[str]
) -> None:
    workers = herd.workers(2)
    before = tokens_of_running_jobs(herd)
    server.stop()  # kill -9
    server.start()
    figures.append(f"redis killed and started: caught up after {seconds_to_catch_up(herd, before):.1f} s")
    assert_consumes(herd)
    assert_undisturbed(herd, workers)


def test_jobs_do_not_change_hands_when_redis_is_away_for_longer_than_a_lease(
    herd: Herd, server: EmbeddedRedis, figures: list[str]
) -> None:
    workers = herd.workers(2)
    before = tokens_of_running_jobs(herd)
    server.stop()
    sleep(PAUSE_S)
    server.start()
    figures.append(f"redis away {PAUSE_S:.0f} s: caught up after {seconds_to_catch_up(herd, before):.1f} s")
    assert_consumes(herd)
    assert_undisturbed(herd, workers)


def test_jobs_do_not_change_hands_when_redis_stands_still(
    herd: Herd, server: EmbeddedRedis, figures: list[str]
) -> None:
    workers = herd.workers(2)
    before = tokens_of_running_jobs(herd)
    os.kill(server.pid, signal.SIGSTOP)
    sleep(PAUSE_S)
    os.kill(server.pid, signal.SIGCONT)
    figures.append(f"redis paused {PAUSE_S:.0f} s: caught up after {seconds_to_catch_up(herd, before):.1f} s")
    assert_consumes(herd)
    assert_undisturbed(herd, workers)


def test_scripts_that_redis_has_forgotten_are_loaded_again(herd: Herd) -> None:
    workers = herd.workers(2)
    job_ids = herd.submit(6)
    for _ in range(5):
        herd.wait_for_progress(job_ids[:2], 10)
        herd.redis.script_flush()
    assert_undisturbed(herd, workers)


def test_a_log_that_is_rolled_back_is_told_again_what_it_forgot(herd: Herd, server: EmbeddedRedis) -> None:
    workers = herd.workers(2)
    job_ids = herd.submit(6, {**SAMPLED, "max_tokens": 200})
    herd.wait_for_tokens(job_ids, 20)
    log = Path(herd.redis.config_get("dir")["dir"]) / "appendonly.aof"
    kept_bytes = log.stat().st_size
    herd.wait_for_progress(job_ids, 20)
    before = {job_id: herd.num_tokens(job_id) for job_id in job_ids}
    server.stop()
    os.truncate(log, kept_bytes)
    server.start()
    wait_until(lambda: all(herd.num_tokens(job_id) > n for job_id, n in before.items()), "jobs caught up")
    assert all("sending events again" in worker.log for worker in workers)
    assert_undisturbed(herd, workers)


def test_a_worker_stops_in_time_while_redis_is_away(herd: Herd, server: EmbeddedRedis) -> None:
    leaving = herd.workers(1)[0]
    job_ids = herd.submit(4)
    herd.wait_for_tokens(job_ids, 10)
    server.stop()
    leaving.signal(signal.SIGQUIT)
    stopped_s = monotonic()
    leaving.wait_for_end()
    assert monotonic() - stopped_s < 10
    server.start()
    assert_resumed(herd)


def assert_resumed(herd: Herd) -> None:
    herd.workers(1)
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", SAMPLED)
    herd.check()
