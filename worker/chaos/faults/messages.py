"""Messages that are none."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.malformed import UNREADABLE, mutants

#: Strange messages a strike, those of known kinds not counted.
NUM_MUTANTS = 300


@contextmanager
def malformed(herd: Herd) -> Iterator[list[str]]:
    """What the queue is given between the herd's jobs; they, and a job behind it all, must go on."""
    for raw in (*UNREADABLE.values(), *islice(mutants(herd.rng), NUM_MUTANTS)):
        herd.jobs.redis.lpush(herd.queue, raw)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
    yield [*herd.jobs.running(), job_id]
