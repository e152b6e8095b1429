"""What a fault is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from llama_herd.worker.chaos.herd import Herd

#: Breaks something of a herd under load. Entered, it says which jobs it has met: from then on these have to
#: go on. Left, it puts back what it has broken, but not the dead. Raises BrokenLaw.
Strike = Callable[[Herd], AbstractContextManager[Sequence[str]]]


@dataclass(frozen=True)
class Fault:
    """A way to break a herd, by name."""

    name: str
    strike: Strike
    what: str
