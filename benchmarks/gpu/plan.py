"""The plan: what is measured in which order, so that minutes on a card are worth most however they end."""

from collections.abc import Sequence

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import NOT_HERE, OK, Step

#: What one call may take: two of them, with the start of the machine, are a quarter of an hour.
CALL_S = 360.0

#: Kernels that most depends on.
CHECKED = ("attention", "Q4_0", "Q4_K", "rows")


def step(limit_s: float, *arguments: str, least_s: float = 20.0, lane: str = "") -> Step:
    """A step by its arguments, which are its name."""
    return Step(" ".join(arguments), ("step", *arguments), limit_s, min(least_s, limit_s), lane)


#: The most telling first. Behind each what it takes on an H200, in seconds.
WHOLE = (
    step(40, "conditions"),  # 7
    step(30, "ceilings"),  # 6
    step(150, "laws", least_s=40, lane="laws"),  # 30; beside it 45 and 50
    *(step(60, "same", "--without", name, lane="same") for name in ("graphs", "overlap", "kernels")),
    *(step(40, "kernel", name, "--short", least_s=12, lane="kernels") for name in CHECKED),
    step(90, "mixed"),  # 30
    step(110, "saturation", least_s=60),  # 70
    step(80, "saturation", "W3s", "--without", "learning", least_s=40),  # 43
    step(60, "decode"),  # 30
    step(150, "queue", "W3", least_s=70),  # 95
    step(150, "kills", least_s=80),  # 85
    step(60, "decode", "--short", "--format", "Q4_0"),  # 36
    step(50, "prefill"),  # 11
    step(60, "start", "--short", "--format", "Q4_0"),  # 25
    step(60, "peer", "llama.cpp", "--format", "Q4_0"),  # 20
    step(60, "profile"),  # 25
    step(60, "draws", "--short"),  # 36
    step(90, "start", "--short", least_s=40),  # 45
    step(80, "peer", "llama.cpp", least_s=25),  # 25
    step(90, "queue", "W4", least_s=50),  # 50
    step(60, "decode", "--short", "--format", "Q4_K_M"),  # 32
    step(150, "peer", "transformers", least_s=40),  # 60 to 150: the last of it is compiled
    step(60, "decode", "--short", "--format", "Q8_0"),  # 32
)


def planned(after: Sequence[Journal]) -> list[Step]:
    """The steps that these calls have left: all that was not well, and what machine it is now."""
    well = {name for journal in after for name, outcome in journal.ends.items() if outcome in (OK, NOT_HERE)}
    return [one for one in WHOLE if one.name == "conditions" or one.name not in well]
