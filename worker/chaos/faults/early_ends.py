"""Jobs that are ended early, at every moment of their way."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from llama_herd.worker.chaos.herd import Herd

NUM_JOBS = 50
SAMPLING = {"max_tokens": 30, "temperature": 0.8, "seed": 5}


@contextmanager
def cancel(herd: Herd) -> Iterator[list[str]]:
    cancelled: list[str] = []
    for _ in range(NUM_JOBS):
        cancelled += herd.jobs.submit(1, SAMPLING, prefix="cancelled")
        sleep(herd.rng.choice([0, 0.002, 0.01, 0.03]))  # anywhere between submit and end
        herd.jobs.client.cancel(herd.rng.choice(cancelled))
    yield []  # none has to go on


@contextmanager
def expire(herd: Herd) -> Iterator[list[str]]:
    """Deadlines that come while jobs wait, prefill, decode, or have just ended."""
    seconds, _ = herd.jobs.redis.time()
    deadlines_ms = [1000 * seconds + herd.rng.randint(200, 5000) for _ in range(NUM_JOBS)]
    for deadline_ms in deadlines_ms:
        herd.jobs.submit(1, SAMPLING, prefix="late", deadline_ms=deadline_ms)
    yield []  # none has to go on
