"""Workers that are gone from one instant to the next."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from llama_herd.worker.chaos.faults.fault import Strike
from llama_herd.worker.chaos.herd import STEP_S, Herd
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.chaos.sabotage import Moment, Sabotage
from llama_herd.worker.chaos.verdict import BrokenLaw


@contextmanager
def kill(herd: Herd) -> Iterator[list[str]]:
    victim = herd.busiest()
    victim.kill()
    yield herd.jobs.running(victim.name)


def dying(moment: Moment) -> Strike:
    """A worker that joins the others and dies when it comes to this moment."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        victim = herd.worker(sabotage=Sabotage(dies=moment, step_s=STEP_S))
        code = victim.wait_for_end()
        if code != -signal.SIGKILL:
            raise BrokenLaw("workers live", f"{victim.name} ended with {code}")
        yield herd.jobs.unfinished() if moment == "popped" else herd.jobs.running(victim.name)

    return strike


@contextmanager
def poison(herd: Herd) -> Iterator[list[str]]:
    """The job is given up after its last attempt, which it has alone; its mates end well."""
    num_workers = len(herd.alive)
    job_id = herd.jobs.accept({"sampling": {"max_tokens": 20}}, "poison")
    mates = herd.jobs.unfinished()

    def is_given_up() -> bool:
        herd.replenish(num_workers)
        return herd.jobs.has_ended(job_id)

    wait_until(is_given_up, "poison given up")
    (result,) = herd.jobs.results([job_id])
    if result.error is None or result.error.code != "poisoned":
        raise BrokenLaw("poison is given up", f"it ended with {result.finish_reason}", job_id)
    yield mates
