"""Subscribers that do not read, come late, or come and go: the herd does not wait for them."""

from time import monotonic

import pytest

from tests.chaos.harness.faults import subscribers
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need
from tests.chaos.sampling import SAMPLED

KINDS = {
    "stuck": subscribers.stuck_crowd,
    "slow": subscribers.slow_crowd,
    "flapping": subscribers.flapping_crowd,
}

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


#: What is measured is a worker at its best: half a second of it says enough.
BRIEF = {**SAMPLED, "max_tokens": 100}


def tokens_per_s(herd: Herd) -> float:
    """Run some jobs through a worker that does its best."""
    started_s = monotonic()
    results = herd.jobs.results(herd.jobs.submit(8, BRIEF))
    return sum(len(result.ids) for result in results) / (monotonic() - started_s)


def test_subscribers_that_read_badly_hold_nothing_up(herd: Herd, figures: list[str]) -> None:
    herd.start_workers(1, step_s=0)
    alone = tokens_per_s(herd)
    for kind, strike in KINDS.items():
        with strike(herd):
            share = tokens_per_s(herd) / alone
        num = subscribers.NUM_SUBSCRIBERS
        figures.append(f"{num} {kind} subscribers: {100 * share:.0f} % of the tokens/s without")


def test_subscribers_that_read_badly_read_the_whole_stream(herd: Herd) -> None:
    herd.start_workers(1)
    for strike in KINDS.values():
        herd.jobs.wait_for(herd.jobs.submit(1, SAMPLED), "n", 1)
        with strike(herd) as met:  # says so when one has read something else
            need(len(met) == 1, "the job runs")
