"""Workers that are asked to stop: they finish what they can, hand over the rest, and nobody notices."""

import signal
from typing import Any

import pytest

from llama_herd.worker.chaos.faults.leaving import exit_s, rolling
from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.chaos.recovery import recovery
from llama_herd.worker.chaos.worker_process import WorkerProcess
from tests.chaos.sampling import LONG, SHORT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def pair(herd: Herd, **settings: Any) -> tuple[WorkerProcess, WorkerProcess]:
    """A worker that runs four jobs, and another one beside it."""
    leaving = herd.ready(herd.worker(**settings))
    herd.jobs.wait_for(herd.jobs.submit(4, LONG), "n", 5)
    return leaving, herd.ready(herd.worker())


def test_sigterm_lets_jobs_finish_within_the_grace(herd: Herd) -> None:
    """And it asks for no more of them meanwhile."""
    leaving, other = pair(herd, grace_s=30)
    running = list(herd.jobs.accepted)
    leaving.signal(signal.SIGTERM)
    wait_until(lambda: herd.state_of(leaving) == "stopping", "signal heard")
    later = herd.jobs.submit(8, SHORT)
    assert leaving.wait_for_end() == 0
    assert {result.worker for result in herd.jobs.results(running)} == {leaving.name}
    assert {result.worker for result in herd.jobs.results(later)} == {other.name}


@pytest.mark.parametrize(
    ("settings", "signals"),
    [
        ({}, [signal.SIGTERM]),
        ({"grace_s": 60}, [signal.SIGTERM, signal.SIGTERM]),
        pytest.param({"grace_s": 60}, [signal.SIGTERM, signal.SIGQUIT], marks=pytest.mark.slow),
        ({"grace_s": 60}, [signal.SIGQUIT]),
    ],
    ids=["TERM", "TERM TERM", "TERM QUIT", "QUIT"],
)
def test_jobs_that_cannot_finish_go_on_elsewhere(
    herd: Herd, figures: list[str], settings: dict[str, int], signals: list[signal.Signals]
) -> None:
    leaving, successor = pair(herd, step_s=0.05, **settings)
    took_s = exit_s(herd, leaving, *signals)  # says so when that takes too long
    goes_on_s = max(recovery(herd.jobs, list(herd.jobs.accepted)).seconds)
    names = " ".join(number.name for number in signals)
    figures.append(f"{names}: exit after {took_s:.1f} s; jobs go on elsewhere {goes_on_s:.1f} s later")
    assert {result.worker for result in herd.jobs.results()} == {successor.name}


def test_a_rolling_restart_under_load_repeats_no_token(herd: Herd) -> None:
    leaving = herd.workers(2, grace_s=1, step_s=0.05)  # slow, lest they leave nothing
    with rolling(herd):
        pass
    handed_over = {name for job_id in herd.jobs.accepted for name in herd.jobs.starts(job_id)[:-1]}
    assert handed_over == {worker.name for worker in leaving}
