"""The plan: what is measured in which order, so that minutes on a card are worth most however they end."""

from collections.abc import Sequence

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import NOT_HERE, OK, Step

#: What one call may take: two of them, with the start of the machine, are a quarter of an hour.
CALL_S = 360.0

#: Kernels that most depends on.
CHECKED = ("attention", "Q4_0", "Q4_K", "rows")


def step(takes_s: float, *arguments: str, lane: str = "") -> Step:
    """A step by its arguments, which are its name; what it takes on an H200, in seconds.

    With less left it is not begun. Twice as much, and some more to compile, is what it may take.
    """
    return Step(" ".join(arguments), ("step", *arguments), 2 * takes_s + 20, takes_s, lane)


#: The most telling first. Lanes run beside each other: right is asked before fast, and timed nowhere.
WHOLE = (
    step(12, "conditions"),
    step(8, "ceilings"),
    step(45, "laws", lane="laws"),
    *(step(13, "same", "--without", name, lane="same") for name in ("graphs", "overlap", "kernels")),
    *(step(11, "kernel", name, "--short", lane="kernels") for name in CHECKED),
    step(16, "mixed"),
    step(43, "saturation"),
    step(30, "decode"),
    step(94, "queue", "W3"),
    step(72, "kills"),
    step(50, "queue", "W4"),
    step(11, "prefill"),
    step(42, "decode", "--short", "--format", "Q4_0"),
    step(25, "start", "--short", "--format", "Q4_0"),
    step(20, "peer", "llama.cpp", "--format", "Q4_0"),
    step(25, "profile"),
    step(36, "draws", "--short"),
    step(45, "start", "--short"),
    step(25, "peer", "llama.cpp"),
    step(44, "saturation", "W3s", "--without", "learning"),
    step(32, "decode", "--short", "--format", "Q4_K_M"),
    step(60, "peer", "transformers"),  # to 150: the last of it is compiled
    step(32, "decode", "--short", "--format", "Q8_0"),
)


def planned(after: Sequence[Journal]) -> list[Step]:
    """The steps that these calls have left: all that was not well, and what machine it is now."""
    well = {name for journal in after for name, outcome in journal.ends.items() if outcome in (OK, NOT_HERE)}
    return [one for one in WHOLE if one.name == "conditions" or one.name not in well]
