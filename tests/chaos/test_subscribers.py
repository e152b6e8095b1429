"""Subscribers that do not read, come late, or come and go: the herd does not wait for them."""

from time import monotonic

import pytest

from llama_herd.tasks.events import Event
from llama_herd.worker.chaos.faults.subscribers import NUM_STUCK, stuck
from llama_herd.worker.chaos.herd import Herd
from tests.chaos.sampling import SAMPLED

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

#: A flapping subscriber leaves after so many events.
FLAP_EVENTS = 20


def tokens_per_s(herd: Herd) -> float:
    """Run some jobs through a worker that does its best."""
    started_s = monotonic()
    results = herd.jobs.results(herd.jobs.submit(8, SAMPLED))
    return sum(len(result.ids) for result in results) / (monotonic() - started_s)


def test_stuck_subscribers_hold_nothing_up(herd: Herd, figures: list[str]) -> None:
    herd.workers(1, step_s=0)
    tokens_per_s(herd)
    alone = tokens_per_s(herd)
    with stuck(herd):
        beside = tokens_per_s(herd)
    figures.append(f"{NUM_STUCK} stuck subscribers: {100 * beside / alone:.0f} % of the tokens/s without")


def test_a_subscriber_that_comes_and_goes_reads_the_whole_stream(herd: Herd) -> None:
    herd.workers(1)
    (job_id,) = herd.jobs.submit(1, SAMPLED)
    seen: list[Event] = []
    while not seen or seen[-1].type != "end":
        for event in herd.jobs.client.stream(job_id, after=len(seen)):
            seen.append(event)
            if len(seen) % FLAP_EVENTS == 0:
                break
    assert seen == herd.jobs.events(job_id)
