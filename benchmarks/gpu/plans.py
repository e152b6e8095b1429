"""The runs: what is measured in which order, so that nine minutes are worth most however they end."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import NOT_HERE, OK, Step

#: What one unattended run may take: a command on a lent card has ten minutes.
TOTAL_S = 540.0

#: Kernels by what they compute: two lanes that run beside each other.
ATTENDING = ("attention", "rows", "rotation", "grouped attention", "windowed attention", "float32 attention")
MULTIPLYING = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "values of Q8_0", "values of Q4_K")


def step(limit_s: float, *arguments: str, least_s: float = 20.0) -> Step:
    """A step by its arguments, which are its name."""
    return Step(" ".join(arguments), ("step", *arguments), limit_s, min(least_s, limit_s))


def without(*names: str) -> tuple[str, ...]:
    return ("--without", ",".join(names))


def laws() -> list[Step]:
    """What holds on a card, captured steps first. It times nothing, so other checks may run beside it."""
    return [step(40, "conditions"), step(300, "laws", least_s=40)]


def attending() -> list[Step]:
    """Whether the kernels of attention and of rows are right. It times nothing."""
    return [step(40, "kernel", name, "--short", least_s=12) for name in ATTENDING]


def multiplying() -> list[Step]:
    """Whether the products and what they unpack are right. It times nothing."""
    return [step(40, "kernel", name, "--short", least_s=12) for name in MULTIPLYING]


def same() -> list[Step]:
    """Whether greedy ids are the same with and without each choice. It times nothing."""
    return [step(60, "same", *without(name)) for name in ("graphs", "overlap", "kernels")]


def first() -> list[Step]:
    """What a step takes, in numbers and in blocks, and where its time goes."""
    return [
        step(40, "conditions"),
        step(30, "ceilings"),
        step(60, "decode", "--short", least_s=30),
        step(50, "decode", "--short", "--format", "Q4_0"),
        step(50, "profile", "--short"),
        step(50, "prefill"),
        *(step(50, "decode", "--short", "--format", format) for format in ("Q8_0", "Q4_K_M")),
    ]


def second() -> list[Step]:
    """The whole queue, prompts, memory, what the host costs, and weights in blocks."""
    return [
        step(40, "conditions"),
        step(30, "ceilings"),
        step(60, "decode"),
        *(step(60, "decode", "--format", format) for format in ("Q4_0", "Q4_K_M", "Q8_0")),
        step(50, "profile", "--short", "--format", "Q4_0"),
        step(160, "queue", "W3", least_s=110),
        step(50, "draws", "--short"),
        step(50, "prefill"),
        step(60, "prefill", "--format", "Q4_0"),
        step(45, "idle"),
        step(45, "memory"),
        *(step(40, "kernel", name, least_s=12) for name in (*ATTENDING, *MULTIPLYING)),
        *(step(45, "decode", "--short", *without(name)) for name in ("graphs", "overlap", "kernels")),
    ]


def third() -> list[Step]:
    """What people wait for, and the peers."""
    return [
        step(40, "conditions"),
        step(30, "ceilings"),
        step(150, "peer", "single", least_s=60),
        step(120, "peer", "continuous", least_s=40),
        step(170, "queue", "W4", least_s=90),
        step(120, "start", "--format", "Q8_0", least_s=60),
        step(90, "saturation"),
        step(150, "peer", "batch", least_s=60),
        step(120, "start", least_s=60),
        step(45, "memory", "--format", "Q4_0"),
        step(45, "decode", "--short", "--format", "Q8_0", *without("blocks")),
    ]


PLANS: Mapping[str, Callable[[], list[Step]]] = {
    "laws": laws,
    "attending": attending,
    "multiplying": multiplying,
    "same": same,
    "first": first,
    "second": second,
    "third": third,
}


def planned(run: str, before: Sequence[Journal]) -> list[Step]:
    """The steps of a run; after its conditions and ceilings those that have not been well in runs before."""
    steps = PLANS[run]()
    earlier = [one for name in PLANS if name != run for one in PLANS[name]()]
    ends = {name: outcome for journal in before for name, outcome in journal.ends.items()}
    known = {one.name for one in steps}
    again = [one for one in earlier if ends.get(one.name, OK) not in (OK, NOT_HERE) and one.name not in known]
    return [*steps[:2], *_once(again), *steps[2:]]


def _once(steps: Sequence[Step]) -> list[Step]:
    return list({one.name: one for one in steps}.values())
