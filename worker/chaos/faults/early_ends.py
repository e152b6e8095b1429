"""Jobs that are ended early, at every moment of their way."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Any

from llama_herd.tasks.message import TASK_NAME
from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.patience import wait_until

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
    """Deadlines, ours and Celery's, that come while jobs wait, prefill, decode, or have just ended."""
    seconds, _ = herd.jobs.redis.time()
    expiring: list[str] = []
    for _ in range(NUM_JOBS // 2):
        deadline_ms = 1000 * seconds + herd.rng.randint(200, 5000)
        herd.jobs.submit(1, SAMPLING, prefix="late", deadline_ms=deadline_ms)
        expiring.append(send_expiring(herd, herd.rng.uniform(0, 2), SAMPLING))
    # The next fault may take a message that is not on record yet, and that would be gone.
    keys = [herd.jobs.ledger.job_key(job_id) for job_id in expiring]
    wait_until(lambda: herd.jobs.redis.exists(*keys) == len(keys), "all on record")
    yield []  # none has to go on


def send_expiring(herd: Herd, seconds: float, sampling: Mapping[str, Any]) -> str:
    """Send a bare message that Celery itself ends if no worker takes it in some seconds; return its id."""
    fields = {"prompt": "a tale", "sampling": sampling}
    expires = datetime.now(UTC) + timedelta(seconds=seconds)
    sent = herd.celery.send_task(TASK_NAME, kwargs=fields, queue=herd.queue, expires=expires)
    herd.jobs.adopt(sent.id, fields)
    return str(sent.id)
