"""Jobs that run or wait for so long that a worker might take their messages for lost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.chaos.harness.faults.redis_faults import keeping_owners
from tests.chaos.harness.herd import STEP_S, Herd
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.sabotage import Sabotage
from tests.chaos.harness.verdict import BrokenLaw

#: So soon the idle worker takes messages for lost; who holds them says so once a second.
SILENT_S = 3.0
#: Options of a worker outside of a herd that takes messages for lost so soon.
SOON_LOST: dict[str, Any] = {
    "include": "tests.chaos.harness.saboteur",
    "env": Sabotage(silent_s=SILENT_S).environment,
}
#: Takes longer than that by the sabotaged steps alone.
LONG = {"max_tokens": 450, "temperature": 0.8, "seed": 11, "ignore_eos": True}
NUM_LONG = 4

#: Enough jobs that the last of them wait for longer than the sweep's patience.
NUM_WAITING = 160
WAITING = {**LONG, "max_tokens": 120}
#: At most so many messages are unclaimed in the hands of a worker that stands still for the sweep's patience.
MAX_IN_STILL_HANDS = NUM_WAITING // 10


@contextmanager
def long_jobs(herd: Herd) -> Iterator[list[str]]:
    """Jobs run for longer than until an idle worker, which serves another model, takes messages for lost."""
    idle = Sabotage(silent_s=SILENT_S, step_s=STEP_S)
    with herd.guest(sabotage=idle, model_name="another"), herd.jobs.alone():
        held = herd.jobs.ledger.unacked_key
        wait_until(lambda: not herd.jobs.redis.exists(held), "what dead workers held is put back")
        num_before = num_put_back(herd)
        job_ids = herd.jobs.submit(NUM_LONG, LONG)
        herd.jobs.wait_for(job_ids, "n", 1)
        with keeping_owners(herd) as met:
            yield met
            herd.jobs.results(job_ids)
        if num_put_back(herd) > num_before:
            raise BrokenLaw("long jobs are delivered once", "a held message was put back")
        check_pushes(herd, job_ids)


@contextmanager
def backlog(herd: Herd) -> Iterator[list[str]]:
    """Jobs that wait behind many others are not taken for lost."""
    job_ids = herd.jobs.submit(NUM_WAITING, WAITING)
    yield herd.jobs.running()
    herd.jobs.results(job_ids)
    check_pushes(herd, job_ids, max_needless=MAX_IN_STILL_HANDS)


def num_put_back(herd: Herd) -> int:
    """How many messages were put back since the start of Redis."""
    calls: int = herd.jobs.redis.info("commandstats").get("cmdstat_rpush", {}).get("calls", 0)
    return calls


def check_pushes(herd: Herd, job_ids: Sequence[str], *, max_needless: int = 0) -> None:
    """Raise BrokenLaw if more messages than these were pushed while the last one was still unclaimed.

    A job that a full worker has released to one with room has two pushes and two claims. A sweep that goes by
    age alone pushes all that wait.
    """
    pushes = {one: (herd.jobs.number(one, "pushes"), herd.jobs.number(one, "epoch")) for one in job_ids}
    needless = {one: counts for one, counts in pushes.items() if counts[0] > counts[1]}
    if len(needless) > max_needless:
        counts = ", ".join(f"{pushed} pushes, {claims} claims" for pushed, claims in needless.values())
        raise BrokenLaw("nothing is pushed needlessly", counts, ", ".join(needless))
