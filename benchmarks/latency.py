"""How long streams wait while a long prompt is computed beside them, by the token budget of prefill.

    python -m benchmarks.latency [--write]

The engine alone, on random models, without a prefix cache: a prompt of 4,000 tokens joins 31 streams. Gaps
are those between the tokens of a stream until the prompt has its first one; a step is the median of those
before and after. Rounds go through all budgets; the largest takes every prompt whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, in_turns, main, merged, percentiles_ms
from benchmarks.jobs import drawn, random_prompt
from benchmarks.report import Row, Table
from benchmarks.speed.files import LONG_3M, LONG_59M, RandomFile
from benchmarks.timed_engine import TimedEngine

SEED = 1
WHOLE = 8192  # no prompt is longer
#: Steps before and after a long prompt, since a step takes longer as the streams grow.
NUM_STEPS = 20


@dataclass(frozen=True)
class Plan:
    files: tuple[RandomFile, ...] = (LONG_3M, LONG_59M)
    budgets: tuple[int, ...] = (16, 24, 32, 64, WHOLE)
    slots: int = 32
    long_prompt: int = 4000
    short_prompt: int = 64
    rounds: int = 3


def beside(model: TimedEngine, budget: int, plan: Plan) -> dict[str, float]:
    """A long prompt joins when all other slots stream."""
    engine, random = model.other(prefill_tokens=budget), Random(SEED)
    trace = engine.begin()
    for number in range(plan.slots - 1):
        prompt = random_prompt(random, plan.short_prompt)
        engine.submit(f"stream-{number}", prompt, drawn(plan.long_prompt))
    engine.fill()
    steps_s = [engine.step() for _ in range(NUM_STEPS)]
    engine.submit("long", random_prompt(random, plan.long_prompt), drawn(1))
    while "long" not in trace.token_s:
        engine.step()
    steps_s += [engine.step() for _ in range(NUM_STEPS)]
    engine.drop()
    joined_s, first_s = trace.arrived_s["long"], trace.token_s["long"][0]
    gaps, step_ms = percentiles_ms(trace.itl_s(joined_s, first_s)), 1000 * median(steps_s)
    return {
        "first token ms": 1000 * (first_s - joined_s),
        **{f"gap {name} ms": ms for name, ms in gaps.items()},
        "step ms": step_ms,
        "gap p99 over step": gaps["p99"] / step_ms,
    }


def measure(plan: Plan) -> Iterator[Table]:
    for file in plan.files:
        with TemporaryDirectory() as folder:
            model = TimedEngine.load(
                model=file.write(Path(folder)),
                slots=plan.slots,
                context_tokens=2 * plan.long_prompt,
                prefix_cache=False,  # a prompt is computed whole here, however often it has come before
                threads=1,
            )
        ways = {str(budget): partial(beside, model, budget, plan) for budget in plan.budgets}
        found = in_turns(ways, plan.rounds)
        rows: list[Row] = [
            {"prefill tokens": int(budget), **merged(rounds)} for budget, rounds in found.items()
        ]
        beside_what = f"a {plan.long_prompt:,}-token prompt beside {plan.slots - 1} streams"
        yield Table(rows, f"{file.shape}, {beside_what}")


BENCHMARK = Benchmark("latency", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
