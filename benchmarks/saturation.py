"""Prompts that always wait: what the token budget of prefill makes of throughput and of the gaps in streams.

    python -m benchmarks.saturation [--write]

The engine alone, after a warm-up as in a worker, with several jobs a row from the beginning. All prompts have
256 tokens, no two begin alike, and outputs have 32 to 96. The budgets take turns, after a run that does not
count; a learnt one begins anew in each round, and has a second turn with jobs that can wait, as those of a
batch. Shown are medians of the rounds.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, in_turns, main, merged
from benchmarks.load import Load, LoadedEngine, Run
from benchmarks.report import Table
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.timed_engine import TimedEngine
from llama_herd.tasks.priority import MIN_PRIORITY
from llama_herd.worker.settings import BUNDLED_MODEL

#: How prompts come into steps: by the budget, and by the priority of the jobs. 0 is learnt; the last budget
#: takes every prompt whole.
WAYS: dict[str, tuple[int, int]] = {
    "learnt": (0, 0),
    "learnt, jobs can wait": (0, MIN_PRIORITY),
    **{str(budget): (budget, 0) for budget in (16, 32, 64, 8192)},
}


@dataclass(frozen=True)
class Case:
    """What to measure with one model; without a file it is the bundled one."""

    name: str
    load: Load
    file: RandomFile | None = None
    ways: tuple[str, ...] = tuple(WAYS)
    rounds: int = 3


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...] = (
        Case(BUNDLED_MODEL.stem, Load(short_prompt=256, max_tokens=64, num_jobs=160)),
        Case(
            "1.1B Q4_0",
            Load(slots=16, short_prompt=256, max_tokens=64, num_jobs=32),
            RandomFile("1.1B", MEDIUM, "Q4_0"),
            rounds=1,
        ),
    )


def measure(plan: Plan) -> Iterator[Table]:
    return map(_measured, plan.cases)


def _measured(case: Case) -> Table:
    threads = len(os.sched_getaffinity(0))
    fields = {"slots": case.load.slots, "context_tokens": 512, "threads": threads, "dtype": "auto"}
    with TemporaryDirectory() as folder:
        path = case.file.write(Path(folder)) if case.file else BUNDLED_MODEL
        model = TimedEngine.load(model=path, **fields)

        def saturated(budget: int, priority: int) -> Run:
            return LoadedEngine(model, case.load, budget).saturated(priority)

        ways = {name: partial(saturated, *WAYS[name]) for name in case.ways}
        found = in_turns(ways, case.rounds, warm=1)
    rows = [{"prefill tokens": name, **merged(runs)} for name, runs in found.items()]
    return Table(rows, f"{case.name}, {case.load.num_jobs} jobs at once, {case.load.slots} rows")


BENCHMARK = Benchmark("saturation", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
