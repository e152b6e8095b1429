"""Clocks that are wrong by an hour."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.faults.redis_faults import keeping_owners
from tests.chaos.harness.herd import STEP_S, Herd
from tests.chaos.harness.sabotage import Sabotage

HOUR_S = 3600.0

#: Long enough for some sweeps and looks for lost messages.
STAY_S = 3.0


def skewed(clock_s: float) -> Strike:
    """A worker with a wrong clock joins the others for a while: it sees their messages as lost, or as new."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        wrong = Sabotage(clock_s=clock_s, step_s=STEP_S)
        with herd.guest(sabotage=wrong), keeping_owners(herd) as met:
            sleep(STAY_S)
            yield met

    return strike
