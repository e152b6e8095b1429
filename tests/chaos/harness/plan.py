"""The plan of a run: which faults, how often, under which load."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

from pydantic import TypeAdapter

from llama_herd.errors import BadInput
from tests.chaos.harness.faults.catalogue import FAULTS
from tests.chaos.harness.faults.fault import Fault

#: Folder of the schedules that come with the package: numbers of strikes by fault, as JSON.
SCHEDULES = Path(__file__).with_name("schedules")

_STRIKES = TypeAdapter(dict[str, int])


@dataclass(frozen=True)
class ChaosPlan:
    """`strikes`: how often each fault strikes. All are done once, or again until `minutes` have passed."""

    strikes: Mapping[str, int]
    num_jobs: int
    max_tokens: int
    seed: int
    minutes: float = 0.0

    def order(self) -> Iterator[Fault]:
        """The faults of all strikes, shuffled by the seed."""
        rng, started_s = Random(self.seed), monotonic()
        is_over = False
        while not is_over:
            names = [name for name, num_strikes in self.strikes.items() for _ in range(num_strikes)]
            rng.shuffle(names)
            for name in names:
                if self.minutes and monotonic() - started_s >= 60 * self.minutes:
                    return
                yield FAULTS[name]
            is_over = not self.minutes


def planned_strikes(faults: Sequence[str], schedule: str) -> Mapping[str, int]:
    """Strikes from names of faults, such as kill or kill=10, or from a schedule; by default each fault once.

    Raises BadInput, which lists the names.
    """
    if faults and schedule:
        raise BadInput(f"both faults and --schedule {schedule} are given. Fix: leave out one of them")
    strikes = _scheduled(schedule) if schedule else _counted(faults or list(FAULTS))
    unknown = sorted(strikes.keys() - FAULTS.keys())
    if unknown:
        raise BadInput(f"no such fault: {', '.join(unknown)}. `python -m tests.chaos.harness list` shows all")
    return strikes


def _scheduled(name: str) -> dict[str, int]:
    path = SCHEDULES / f"{name}.json"
    known = sorted(found.stem for found in SCHEDULES.glob("*.json"))
    if name not in known:
        raise BadInput(f"--schedule {name}: must be one of {', '.join(known)}")
    return _STRIKES.validate_json(path.read_bytes())


def _counted(faults: Sequence[str]) -> Counter[str]:
    strikes = Counter[str]()
    for fault in faults:
        name, _, times = fault.partition("=")
        if times and re.fullmatch("[1-9][0-9]{0,5}", times) is None:
            raise BadInput(
                f"{fault}: a fault's name may be followed by =COUNT from 1 to 999999, such as kill=10"
            )
        strikes[name] += int(times or 1)
    return strikes
