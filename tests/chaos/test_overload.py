"""Producers that want ten times what a worker can do: what is too much is refused, the rest has its turn."""

from bisect import bisect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest

from llama_herd.errors import QueueFull
from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.chaos.harness.herd import Herd
from tests.chaos.sampling import SAMPLED

#: At 10 ms a step four slots serve about forty of these a second.
JOB = {**SAMPLED, "max_tokens": 8}
NUM_SLOTS = 4
MAX_QUEUE = 20
#: A job is estimated at some tokens more than it asks for, at most so many: fewer jobs make these full.
MAX_TOKENS = 8 * MAX_QUEUE
ESTIMATE = 16

#: Those that come again at once when they are refused, and how often each of them does.
NUM_GREEDY, EACH_S = 8, 1 / 60
#: Those that come again when they are told to, and their jobs.
NUM_PATIENT, NUM_THEIRS = 4, 5

#: Of a job: record, stream, result. Of the herd: all else.
KEYS_PER_JOB, OTHER_KEYS = 3, 20
KIB_PER_JOB = 16
MAX_MORE_MIB = 32

pytestmark = pytest.mark.fault


class Producers:
    """All of them by one client, whose bounds these are."""

    def __init__(self, herd: Herd, **bounds: int) -> None:
        self.jobs = herd.jobs
        self.client = Client(
            settings=herd.settings.model_copy(update=bounds), model=herd.settings.served_model
        )
        self.refusals: list[QueueFull] = []
        self._numbers = count()

    def greedy(self, seconds: float) -> None:
        end_s = monotonic() + seconds
        while monotonic() < end_s:
            self._submit(next(self._numbers))
            sleep(EACH_S)

    def patient(self) -> None:
        for _ in range(NUM_THEIRS):
            number = next(self._numbers)
            while (refusal := self._submit(number)) is not None:
                sleep(refusal.retry_after_s)

    def _submit(self, number: int) -> QueueFull | None:
        job_id = f"job-{number}"
        job: dict[str, Any] = {"prompt": f"tale of {job_id}", "sampling": JOB}
        try:
            self.client.submit(job_id=job_id, **job)
        except QueueFull as refusal:
            self.refusals.append(refusal.with_traceback(None))
            return refusal
        self.jobs.adopt(job_id, job)
        return None


@pytest.mark.parametrize("seconds", [4, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("bounds", "least_depth"),
    [({"max_queue": MAX_QUEUE}, MAX_QUEUE), ({"max_queue_tokens": MAX_TOKENS}, MAX_TOKENS - ESTIMATE)],
    ids=["jobs", "tokens"],
)
@pytest.mark.timeout(1800)
def test_beyond_its_bounds_a_queue_takes_nothing_and_what_it_has_taken_waits_no_longer_than_they_say(
    herd: Herd, figures: list[str], bounds: dict[str, int], least_depth: int, seconds: int
) -> None:
    (worker,) = herd.start_workers(1, slots=NUM_SLOTS)
    herd.jobs.results(herd.jobs.submit(NUM_SLOTS, JOB))
    rss_bytes, redis_bytes = worker.rss_bytes, used_bytes(herd)
    producers = Producers(herd, **bounds)
    with closing(producers.client), ThreadPoolExecutor(NUM_GREEDY + NUM_PATIENT) as pool:
        threads = [pool.submit(producers.greedy, seconds) for _ in range(NUM_GREEDY)]
        threads += [pool.submit(producers.patient) for _ in range(NUM_PATIENT)]
        for thread in threads:
            thread.result()
    assert {result.finish_reason for result in herd.jobs.results()} == {"length"}

    num_taken, num_refused = len(herd.jobs.accepted), len(producers.refusals)
    assert num_refused > num_taken
    (limit,) = bounds.values()
    assert all(least_depth <= refusal.depth <= refusal.limit == limit for refusal in producers.refusals)
    assert all(1 <= refusal.retry_after_s <= 60 for refusal in producers.refusals)

    most_ahead = max(num_ahead(herd))
    assert most_ahead <= MAX_QUEUE + NUM_SLOTS + NUM_LOOK_AHEAD
    assert herd.jobs.redis.dbsize() <= KEYS_PER_JOB * num_taken + OTHER_KEYS
    kib_per_job = (used_bytes(herd) - redis_bytes) / num_taken / 1024
    assert kib_per_job < KIB_PER_JOB
    more_mib = (worker.rss_bytes - rss_bytes) >> 20
    assert more_mib < MAX_MORE_MIB
    figures.append(
        f"overload for {seconds} s: {num_taken} jobs taken, {num_refused} refusals; while a job waited, "
        f"at most {most_ahead} others started; the worker holds {more_mib} MiB more, Redis {kib_per_job:.1f} "
        "KiB a job"
    )


def used_bytes(herd: Herd) -> int:
    """What Redis holds."""
    return int(herd.jobs.redis.info("memory")["used_memory"])


def num_ahead(herd: Herd) -> Iterator[int]:
    """How many jobs started while each job waited."""
    came_ms = {job_id: herd.jobs.number(job_id, "submitted_ms") for job_id in herd.jobs.accepted}
    started_ms = {}
    for result in herd.jobs.results():
        assert result.timings is not None
        assert result.timings.queue_s is not None
        started_ms[result.job] = came_ms[result.job] + 1000 * result.timings.queue_s
    starts = sorted(started_ms.values())
    for job_id, start_ms in started_ms.items():
        yield bisect(starts, start_ms) - 1 - bisect(starts, came_ms[job_id])
