"""Workers that are asked to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from llama_herd.worker.chaos.faults.fault import Strike
from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.chaos.verdict import BrokenLaw
from llama_herd.worker.chaos.worker_process import WorkerProcess

#: More than two workers hold, so that some go back to the queue.
NUM_QUEUED = 100
QUEUED = {"max_tokens": 120, "temperature": 0.8, "seed": 11, "ignore_eos": True}

#: Containers are killed 10 s after they were asked to stop.
EXIT_LIMIT_S = 8.0


def stopping(*signals: signal.Signals) -> Strike:
    """One worker gets these signals; what it does not finish goes on elsewhere, and no attempt is counted."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        victim = herd.busiest()
        met = herd.jobs.running(victim.name)
        exit_s(herd, victim, *signals)
        yield [job_id for job_id in met if not herd.jobs.has_ended(job_id)]

    return strike


@contextmanager
def rolling(herd: Herd) -> Iterator[list[str]]:
    """All workers are replaced, one after the other, while more jobs wait than they hold."""
    job_ids = herd.jobs.submit(NUM_QUEUED, QUEUED)
    for worker in herd.alive:
        replace(herd, worker)
    yield herd.jobs.running()
    ends = {result.finish_reason for result in herd.jobs.results(job_ids)}
    if ends != {"length"}:
        raise BrokenLaw("nobody notices a restart", f"{NUM_QUEUED} jobs ended by {sorted(ends)}")


def replace(herd: Herd, worker: WorkerProcess) -> None:
    """Stop a worker that runs jobs; return when another one is ready in its place."""
    num_workers = len(herd.alive)
    wait_until(lambda: herd.jobs.running(worker.name), f"{worker.name} at work")
    exit_s(herd, worker, signal.SIGTERM)
    for successor in herd.replenish(num_workers):
        herd.ready(successor)


def exit_s(herd: Herd, worker: WorkerProcess, *signals: signal.Signals) -> float:
    """Send signals, each once the worker has heard the one before; seconds from the first until it has ended.

    Raises BrokenLaw when that is too long, or did not end well.
    """
    sent_s = monotonic()
    for number in signals:
        worker.signal(number)
        wait_until(lambda: not worker.is_alive or herd.state_of(worker) != "ready", "signal heard")
    code, took_s = worker.wait_for_end(), monotonic() - sent_s
    if code != 0 or took_s > EXIT_LIMIT_S:
        raise BrokenLaw("stops in time", f"{worker.name} ended with {code} after {took_s:.1f} s")
    return took_s
