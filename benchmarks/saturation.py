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
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, in_turns, main, merged, percentiles_ms
from benchmarks.jobs import drawn, random_prompt
from benchmarks.report import Table
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.timed_engine import TimedEngine
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.priority import MIN_PRIORITY

SEED = 1
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
    num_jobs: int
    slots: int
    file: RandomFile | None = None
    ways: tuple[str, ...] = tuple(WAYS)
    prompt_tokens: int = 256
    max_tokens: int = 64  # of a job in the middle
    rounds: int = 3


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...] = (
        Case(BUNDLED_MODEL.stem, num_jobs=160, slots=32),
        Case("1.1B Q4_0", num_jobs=32, slots=16, file=RandomFile("1.1B", MEDIUM, "Q4_0"), rounds=1),
    )


def saturated(model: TimedEngine, case: Case, way: str) -> dict[str, float]:
    """All jobs come at once, after a warm-up of one; lengths of outputs differ."""
    budget, priority = WAYS[way]
    engine, random = model.other(prefill_tokens=budget), Random(SEED)
    engine.submit("warm-up", random_prompt(random, case.prompt_tokens), drawn(8))
    engine.run()
    trace, num_steps = engine.begin(), 0
    for number in range(case.num_jobs):
        sampling = drawn(random.randint(case.max_tokens // 2, case.max_tokens * 3 // 2))
        prompt = random_prompt(random, case.prompt_tokens)
        engine.submit(f"job-{number}", prompt, sampling, priority=priority)
    while engine.engine.has_work:
        engine.step()
        num_steps += 1
    return {
        "tokens a second": trace.tokens_per_s,
        "rows that decode": trace.num_tokens / num_steps,
        **{f"gap {name} ms": ms for name, ms in percentiles_ms(trace.itl_s()).items()},
    }


def measure(plan: Plan) -> Iterator[Table]:
    return map(_measured, plan.cases)


def _measured(case: Case) -> Table:
    threads = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as folder:
        path = case.file.write(Path(folder)) if case.file else BUNDLED_MODEL
        fields = {"slots": case.slots, "context_tokens": 512, "threads": threads}
        model = TimedEngine.load(model=path, **fields)
        ways = {name: partial(saturated, model, case, name) for name in case.ways}
        found = in_turns(ways, case.rounds, warm=1)
    rows = [{"prefill tokens": name, **merged(runs)} for name, runs in found.items()]
    return Table(rows, f"{case.name}, {case.num_jobs} jobs at once, {case.slots} rows")


BENCHMARK = Benchmark("saturation", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
