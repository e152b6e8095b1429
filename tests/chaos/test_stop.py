"""Workers that are asked to stop: they finish what they can, hand over the rest, and nobody notices."""

import signal

import pytest

from tests.chaos.harness.faults.leaving import SLOW_S, rolling, stop_worker, stopping
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.recovery import recovery
from tests.chaos.sampling import LONG, SHORT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_lets_jobs_finish_within_the_grace(herd: Herd, number: signal.Signals) -> None:
    """And it asks for no more of them meanwhile."""
    (leaving,) = herd.start_workers(1, grace_s=60, step_s=0.03)
    running = herd.jobs.submit(4, {**LONG, "max_tokens": 100})
    herd.jobs.wait_for(running, "n", 5)
    leaving.signal(number)
    wait_until(lambda: herd.state_of(leaving) == "stopping", "signal heard")
    later = herd.jobs.submit(8, SHORT)
    assert leaving.wait_for_end() == 0
    (other,) = herd.start_workers(1)
    assert {result.worker for result in herd.jobs.results(running)} == {leaving.name}
    assert {result.worker for result in herd.jobs.results(later)} == {other.name}


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGQUIT],
        pytest.param([signal.SIGTERM, signal.SIGQUIT], marks=pytest.mark.slow),
    ],
    ids=["QUIT", "TERM QUIT"],
)
def test_jobs_that_are_handed_over_go_on_long_before_their_lease_would_end(
    herd: Herd, figures: list[str], signals: list[signal.Signals]
) -> None:
    """Of a minute, and the worker would have more time yet to finish them."""
    (leaving,) = herd.start_workers(1, step_s=SLOW_S, grace_s=300, lease_ms=60_000)
    job_ids = herd.jobs.submit(4, LONG)
    herd.jobs.wait_for(job_ids, "n", 1)
    (successor,) = herd.start_workers(1)
    assert sorted(stop_worker(herd, leaving, *signals)) == job_ids
    recovered = recovery(herd.jobs, job_ids)
    assert not recovered.stuck
    figures.append(f"{len(signals)} signals: jobs go on elsewhere {max(recovered.seconds):.1f} s later")
    assert {result.worker for result in herd.jobs.results()} == {successor.name}
    assert {herd.jobs.number(job_id, "pushes") for job_id in job_ids} == {1}


def test_a_start_that_a_restart_cuts_short_counts_as_no_attempt(herd: Herd) -> None:
    """Before its first token, on a worker without others, so that the count is seen as it is left."""
    herd.settings = herd.settings.model_copy(update={"max_deaths": 1, "prefill_tokens": 1})
    jobs = [{"prompt": f"{way} long ways " * 25, "sampling": SHORT} for way in range(4)]
    job_ids = [herd.jobs.accept(job) for job in jobs]
    with stopping(signal.SIGQUIT)(herd) as met:
        assert met
        assert {herd.jobs.number(job_id, "n") for job_id in job_ids} == {0}
        assert max(herd.jobs.number(job_id, "attempts") for job_id in job_ids) == 1
        herd.start_workers(1)
        assert {result.finish_reason for result in herd.jobs.results()} == {"length"}


def test_a_rolling_restart_under_load_repeats_no_token(herd: Herd) -> None:
    leaving = herd.start_workers(2, grace_s=1, step_s=0.05)  # slow, lest they leave nothing
    with rolling(herd):
        pass
    handed_over = {name for job_id in herd.jobs.accepted for name in herd.jobs.starts(job_id)[:-1]}
    assert handed_over == {worker.name for worker in leaving}
