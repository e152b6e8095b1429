"""Workers that are asked to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from llama_herd.tasks.ledger.answers import JobRecord
from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.verdict import BrokenLaw
from tests.local.tended_worker import TendedWorker

#: More jobs than two workers hold, so that some go back to the queue.
NUM_QUEUED = 100
QUEUED = {"max_tokens": 120, "temperature": 0.8, "seed": 11, "ignore_eos": True}

#: Docker kills a container 10 s after asking it to stop.
EXIT_LIMIT_S = 8.0


#: Step time of a worker that will leave: no job ends before the worker does.
SLOW_S = 0.2
#: Least number of jobs that it runs.
NUM_LEFT = 3
#: Far longer than a worker may take to leave: one that uses its grace has ignored the second signal.
LONG_GRACE_S = 300.0


def stopping(*signals: signal.Signals, grace_s: float = LONG_GRACE_S) -> Strike:
    """A worker joins the others, takes jobs and gets these signals: it hands over unfinished jobs."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        leaving = herd.wait_until_ready(herd.start_worker(step_s=SLOW_S, grace_s=grace_s))
        wait_until(lambda: len(herd.jobs.running(leaving.name)) >= NUM_LEFT, f"{leaving.name} at work")
        yield stop_worker(herd, leaving, *signals)

    return strike


@contextmanager
def rolling(herd: Herd) -> Iterator[list[str]]:
    """All workers are replaced, one after the other, while more jobs wait than they hold."""
    job_ids = herd.jobs.submit(NUM_QUEUED, QUEUED)
    for worker in herd.alive:
        replace_worker(herd, worker)
    yield herd.jobs.running()
    ends = {result.finish_reason for result in herd.jobs.results(job_ids)}
    if ends != {"length"}:
        raise BrokenLaw("nobody notices a restart", f"{NUM_QUEUED} jobs ended by {sorted(ends)}")


def replace_worker(herd: Herd, worker: TendedWorker) -> None:
    """Stop a worker that runs jobs; return when another one is ready in its place."""
    num_workers = len(herd.alive)
    wait_until(lambda: herd.jobs.running(worker.name), f"{worker.name} at work")
    stop_worker(herd, worker, signal.SIGTERM)
    for successor in herd.replenish(num_workers):
        herd.wait_until_ready(successor)


def stop_worker(herd: Herd, worker: TendedWorker, *signals: signal.Signals) -> list[str]:
    """Send signals to a worker and wait for its end; return the jobs that it has handed over.

    Raises BrokenLaw if it left a job to its lease, or if its end counted as a death of a job.
    """
    before = {job_id: herd.jobs.record(job_id) for job_id in herd.jobs.running(worker.name)}
    seconds_to_exit(herd, worker, *signals)
    left = []
    for job_id, held in before.items():
        record = herd.jobs.record(job_id)
        if held and record and not (record.is_final and record.worker == worker.name):
            check_release(job_id, held, record)
            left.append(job_id)
    return left


def check_release(job_id: str, held: JobRecord, left: JobRecord) -> None:
    """Raise BrokenLaw if a job was not released: its record before and after its worker has left.

    A release does not change the count of deaths; tokens that were recorded before it may have reset it.
    """
    if left.owner == held.owner:
        raise BrokenLaw("jobs are handed over", "it is left to the end of its lease", job_id)
    if left.state == "queued" and left.deaths not in (0, held.deaths):
        raise BrokenLaw("jobs are handed over", f"{left.deaths} deaths, not {held.deaths}", job_id)


def seconds_to_exit(herd: Herd, worker: TendedWorker, *signals: signal.Signals) -> float:
    """Send signals, each after the worker has reacted to the last; return seconds from the first to its end.

    Raises BrokenLaw if that took too long, or if its exit code was not 0.
    """
    sent_s = monotonic()
    for number in signals:
        worker.signal(number)
        wait_until(lambda: not worker.is_alive or herd.state_of(worker) != "ready", "signal heard")
    code, took_s = worker.wait_for_end(), monotonic() - sent_s
    if code != 0 or took_s > EXIT_LIMIT_S:
        raise BrokenLaw("stops in time", f"{worker.name} ended with {code} after {took_s:.1f} s")
    return took_s
