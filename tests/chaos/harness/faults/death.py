"""Workers that die suddenly."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from llama_herd.error_code import ErrorCode
from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.herd import STEP_S, Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.recovery import STUCK_S
from tests.chaos.harness.sabotage import POISONS, Moment, Poison, Sabotage
from tests.chaos.harness.verdict import BrokenLaw
from tests.local.tended_worker import TendedWorker


@contextmanager
def kill_worker(herd: Herd) -> Iterator[list[str]]:
    victim = herd.busiest()
    victim.kill()
    yield herd.jobs.running(victim.name)


@contextmanager
def kill_text_worker(herd: Herd) -> Iterator[list[str]]:
    """The only worker that embeds, or that ranks: its jobs go on when there is another."""
    kind, num_workers = herd.rng.choice(list(herd.text_models)), len(herd.alive)
    (victim,) = (one for one in herd.alive if one.settings.served_model == kind)
    wait_until(partial(_is_in_midst, herd, victim), f"{victim.name} in the midst of a job")
    victim.kill()
    met = herd.jobs.running(victim.name)
    herd.replenish(num_workers)
    yield met


def _is_in_midst(herd: Herd, worker: TendedWorker) -> bool:
    """Whether a job of the worker has some vectors already."""
    return any(herd.jobs.numbers(herd.jobs.running(worker.name), "n"))


def dying(moment: Moment) -> Strike:
    """A worker joins the others, and dies when it reaches this moment."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        victim = herd.start_worker(sabotage=Sabotage(dies=moment, step_s=STEP_S))
        code = victim.wait_for_end()
        if code != -signal.SIGKILL:
            raise BrokenLaw("workers live", f"{victim.name} ended with {code}")
        met = herd.jobs.unfinished() if moment == "popped" else herd.jobs.running(victim.name)
        if moment == "prefill" and not met:
            raise BrokenLaw("a fault strikes", f"{victim.name} died before it had begun a job")
        yield met

    return strike


def poisoned(kind: Poison) -> Strike:
    """A job that kills its workers in this way is given up after its last attempt, in which it runs alone.

    The other jobs end well.
    """

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        num_workers, num_killed = len(herd.alive), len(herd.killed)
        job_id = herd.jobs.accept({"sampling": {"max_tokens": 20, "ignore_eos": True}}, kind)
        mates = herd.jobs.unfinished()

        def is_given_up() -> bool:
            num_victims, most = len(herd.killed) - num_killed, herd.settings.max_deaths
            if num_victims > most:
                raise BrokenLaw("poison is given up", f"it has killed {num_victims} workers", job_id)
            herd.replenish(num_workers)
            return herd.jobs.has_ended(job_id)

        wait_until(is_given_up, f"{job_id} given up", STUCK_S)  # its last attempt waits for its turn
        (result,) = herd.jobs.results([job_id])
        if result.error is None or result.error.code != ErrorCode.POISONED:
            raise BrokenLaw("poison is given up", f"it ended with {result.finish_reason}", job_id)
        yield mates

    return strike


def poison(herd: Herd) -> AbstractContextManager[Sequence[str]]:
    """A poisoned job of a random kind."""
    return poisoned(herd.rng.choice(POISONS))(herd)
