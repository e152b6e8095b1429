"""Workers that are asked to stop: they finish what they can, hand over the rest, and nobody notices."""

import signal
from time import monotonic
from typing import Any

import pytest

from tests.chaos.herd import SAMPLED, Herd
from tests.worker.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

LONG = {**SAMPLED, "max_tokens": 450}


def pair(herd: Herd, **settings: Any) -> tuple[WorkerProcess, WorkerProcess]:
    """A worker that runs four jobs, and another one beside it."""
    leaving = herd.ready(herd.worker(**settings))
    herd.wait_for_tokens(herd.submit(4, LONG), 5)
    return leaving, herd.ready(herd.worker())


def exit_s(herd: Herd, worker: WorkerProcess, *signals: signal.Signals) -> float:
    """Send signals, each once the worker has heard the one before; seconds until it has ended well."""
    for number in signals:
        sent_s = monotonic()
        worker.signal(number)
        wait_until(lambda: herd.state_of(worker) != "ready", "signal heard")
    assert worker.wait_for_end() == 0
    return monotonic() - sent_s


def assert_handed_over(herd: Herd, worker: WorkerProcess) -> None:
    """Its jobs went on elsewhere with the same ids; the check finds no token twice."""
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", LONG)
        assert result.worker != worker.name
    herd.check()


def test_sigterm_lets_jobs_finish_within_the_grace(herd: Herd) -> None:
    leaving, _ = pair(herd)
    assert exit_s(herd, leaving, signal.SIGTERM) < 10
    assert {result.worker for result in herd.results()} == {leaving.name}
    herd.check()


@pytest.mark.parametrize(
    ("settings", "signals"),
    [
        ({}, [signal.SIGTERM]),
        ({"grace_s": 60}, [signal.SIGTERM, signal.SIGTERM]),
        ({"grace_s": 60}, [signal.SIGTERM, signal.SIGQUIT]),
        ({"grace_s": 60}, [signal.SIGQUIT]),
    ],
    ids=["TERM", "TERM TERM", "TERM QUIT", "QUIT"],
)
def test_jobs_that_cannot_finish_go_on_elsewhere(
    herd: Herd, figures: list[str], settings: dict[str, int], signals: list[signal.Signals]
) -> None:
    leaving, _ = pair(herd, step_s=0.05, **settings)
    took_s = exit_s(herd, leaving, *signals)
    figures.append(f"{' '.join(number.name for number in signals)}: exit after {took_s:.1f} s")
    assert took_s < 8
    assert_handed_over(herd, leaving)


def test_a_rolling_restart_under_load_repeats_no_token(herd: Herd) -> None:
    workers = herd.workers(2, grace_s=1)
    herd.submit(100, {**SAMPLED, "max_tokens": 60})
    for worker in workers:
        herd.wait_for_tokens(herd.job_ids[:1])
        successor = herd.worker(grace_s=1)
        assert exit_s(herd, worker, signal.SIGTERM) < 10
        herd.ready(successor)
    assert {result.finish_reason for result in herd.results()} == {"length"}
    herd.check()
