"""How long streams wait, by the token budget of prefill: time to first token (TTFT) and between tokens (ITL).

    python -m benchmarks.latency [--write]

The engine alone, on random models, without a prefix cache. Two loads: a prompt of 4,000 tokens that joins
31 running streams, in rounds that go through all budgets; and jobs that come at random (Poisson), a few of
them with such a prompt, once. A step is the median of those that only decode. The tables show the round whose
ratio is the median. The largest budget takes every prompt whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, in_turns, main
from benchmarks.load import Load, LoadedEngine, Run
from benchmarks.report import Row, Table
from benchmarks.shapes import LONG_BUNDLED, RANDOM_59M, Shape
from benchmarks.timed_engine import TimedEngine

WHOLE = 8192  # no prompt is longer
RATIO = "itl p99 over step"


@dataclass(frozen=True)
class Case:
    """What to measure with one shape."""

    shape: Shape
    load: Load
    beside: tuple[int, ...] = (8, 16, 24, 32, 64, WHOLE)
    poisson: tuple[int, ...] = (16, 24, 64, WHOLE)
    rounds: int = 3


LARGER = Load(num_jobs=64, jobs_per_s=0.8, jobs_per_long=16)


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...] = (
        Case(LONG_BUNDLED, Load()),
        Case(RANDOM_59M, LARGER, (16, 24, 32, 64, WHOLE), (16, 24, WHOLE)),
    )


def measure(plan: Plan) -> Iterator[Table]:
    for case in plan.cases:
        yield from _measured(case)


def _measured(case: Case) -> Iterator[Table]:
    with TemporaryDirectory() as folder:
        model = TimedEngine.load(
            model=case.shape.file(Path(folder)),
            slots=case.load.slots,
            context_tokens=case.load.context_length,
            prefix_cache=False,  # a prompt is computed whole here, however often it has come before
            threads=1,
            dtype="float32",
        )

    def beside(budget: int) -> Run:
        return LoadedEngine(model, case.load, budget).beside()

    found = in_turns({str(one): partial(beside, one) for one in case.beside}, case.rounds)
    rows = [row(name, runs) for name, runs in found.items()]
    yield Table(rows, f"{case.shape.name}, a 4,000-token prompt beside 31 streams")
    rows = [row(str(one), [LoadedEngine(model, case.load, one).poisson()]) for one in case.poisson]
    yield Table(rows, f"{case.shape.name}, Poisson load")


def row(budget: str, rounds: list[Run]) -> Row:
    """The median round of a budget; of several rounds also between which ratios they lie."""
    ratios = [one[RATIO] for one in rounds]
    middle = next(one for one in rounds if one[RATIO] == median_low(ratios))
    extent = {"in all rounds": f"{min(ratios)}-{max(ratios)}"} if len(rounds) > 1 else {}
    return {"prefill tokens": int(budget), **middle, **extent}


BENCHMARK = Benchmark("latency", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
