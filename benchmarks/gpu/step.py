"""Step: one thing to measure, in a process of its own and for a limited time."""

from dataclasses import dataclass

#: How steps end that nobody need look at.
OK, NOT_HERE = "ok", "not here"
#: What a step ends with when there is nothing to measure here, which is no failure.
EXIT_NOT_HERE = 3


class NotHere(Exception):
    """What a step is about is not there, on this machine or in this version."""


@dataclass(frozen=True)
class Step:
    """What `python -m benchmarks.gpu step` is told.

    limit_s: after that it is killed. least_s: with less time left it is not begun. lane: those of a lane run
    one by one, beside those of other lanes that stand next to them; without one a step runs alone.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    least_s: float
    lane: str = ""
