"""Redis goes away under a running herd, comes back, and may have forgotten things."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic

import pytest

from llama_herd.tasks.protocol.message import Envelope
from tests.chaos.harness.faults import redis_faults
from tests.chaos.harness.faults.early_ends import num_listening
from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.faults.leaving import EXIT_LIMIT_S
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.harness.recovery import recovery
from tests.chaos.sampling import LONG, SAMPLED, SHORT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_jobs_go_on_where_they_were_when_redis_comes_back(herd: Herd, figures: list[str]) -> None:
    workers = herd.start_workers(2)
    outages: dict[str, Strike] = {
        "kill": redis_faults.kill_redis,
        "away": redis_faults.redis_away,
        "pause": redis_faults.pause_redis,
    }
    for name, strike in outages.items():
        herd.jobs.wait_for(herd.jobs.submit(6, SAMPLED), "n", 10)
        with strike(herd) as met:  # says so when a job has changed hands
            need(met, "some jobs run")
            recovered = recovery(herd.jobs, met)
        assert not recovered.stuck, name
        figures.append(f"redis {name}: jobs go on {max(recovered.seconds):.1f} s after its return")
        herd.jobs.submit(1, SHORT)
        assert {result.attempts for result in herd.jobs.results()} == {1}, name
        assert all(worker.is_alive for worker in workers), name


def test_no_second_message_takes_a_job_from_its_live_worker_after_an_outage(herd: Herd) -> None:
    """Whoever has it asks again when Redis is back, perhaps before the job's worker could renew its lease."""
    workers = herd.start_workers(2)
    job_ids = herd.jobs.submit(6, SAMPLED)
    herd.jobs.wait_for(job_ids, "n", 10)
    for job_id in job_ids * 2:
        herd.jobs.redis.lpush(herd.queue, Envelope.for_job(job_id, herd.queue).with_tag(f"{job_id}-again"))
    wait_until(lambda: not herd.jobs.redis.llen(herd.queue), "all messages taken")
    with redis_faults.redis_away(herd) as met:  # says so when a job has changed hands
        assert not recovery(herd.jobs, met).stuck
    assert {result.attempts for result in herd.jobs.results()} == {1}
    assert all(worker.is_alive for worker in workers)


def test_workers_with_remote_control_live_on_and_listen_again(herd: Herd) -> None:
    """Of the two connections of each, that of remote control may be the first to break."""
    workers = herd.start_workers(2, remote_control=True)
    herd.jobs.wait_for(herd.jobs.submit(6, SAMPLED), "n", 10)
    with redis_faults.kill_redis(herd):
        herd.jobs.submit(1, SHORT)
        assert {result.attempts for result in herd.jobs.results()} == {1}
    assert all(worker.is_alive for worker in workers)
    wait_until(lambda: num_listening(herd) == len(workers), "all listen")


def test_scripts_that_redis_has_forgotten_are_loaded_again(herd: Herd) -> None:
    workers = herd.start_workers(2)
    job_ids = herd.jobs.submit(6, SAMPLED)
    for _ in range(5):
        herd.jobs.wait_for_progress(job_ids[:2], 10)
        with redis_faults.flush_scripts(herd) as met:
            herd.jobs.wait_for_progress(met)
    herd.jobs.results()
    assert all(worker.is_alive for worker in workers)


def test_a_log_that_is_rolled_back_is_told_again_what_it_forgot(herd: Herd) -> None:
    workers = herd.start_workers(2)
    with redis_faults.roll_back(herd) as met:
        had = {herd.jobs.owner(job_id) for job_id in met}  # one may have taken all
        assert {worker.name for worker in workers if "sending events again" in worker.log} == had
    assert {result.attempts for result in herd.jobs.results()} == {1}


def silence(herd: Herd, name: str) -> AbstractContextManager[None]:
    """A Redis that gives a worker behind the proxy no answer."""
    match name:
        case "away":
            return herd.server.away()
        case "pause":
            return herd.server.standing_still()
    return held(herd)


@contextmanager
def held(herd: Herd) -> Iterator[None]:
    herd.proxy.hold()
    yield
    herd.proxy.release()


@pytest.mark.parametrize("name", ["away", "pause", "black hole"])
def test_workers_stop_in_time_while_redis_is_silent(herd: Herd, figures: list[str], name: str) -> None:
    """One that may finish its jobs first, and one that may not."""
    patient, hasty = herd.start_workers(2, is_behind_proxy=True, slots=2)
    herd.jobs.submit(4, LONG)
    wait_until(lambda: herd.jobs.running(patient.name) and herd.jobs.running(hasty.name), "both at work")
    with silence(herd, name):
        patient.signal(signal.SIGTERM)
        hasty.signal(signal.SIGQUIT)
        signalled_s = monotonic()
        assert [worker.wait_for_end() for worker in (patient, hasty)] == [0, 0]
        took_s = monotonic() - signalled_s
    need(took_s < EXIT_LIMIT_S, f"both end within {EXIT_LIMIT_S} s")
    figures.append(f"TERM and QUIT while Redis is silent ({name}): both exit within {took_s:.1f} s")
    herd.start_workers(1)
    herd.jobs.results()
