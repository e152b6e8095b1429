"""Fault: a way to break a herd, with a name."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.chaos.harness.herd import Herd

#: A context manager that breaks something of a herd under load. Entering it returns the jobs that it has hit:
#: from then on they must go on. Leaving it repairs the damage, except dead workers. Raises BrokenLaw.
Strike = Callable[[Herd], AbstractContextManager[Sequence[str]]]


@dataclass(frozen=True)
class Fault:
    """A way to break a herd, by name."""

    name: str
    strike: Strike
    description: str
