"""What the prefix cache saves: jobs whose prompts begin with the same 1,000 tokens, with and without it.

    python -m benchmarks.prefix [--write]

The engine alone, on random models. All jobs come at once; with the cache the first computes the prefix and
the others wait for its pages. The last of the runs finds the prefix there from the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, main, percentiles_ms
from benchmarks.jobs import greedy, random_prompt
from benchmarks.report import Row, Table
from benchmarks.speed.files import LONG_3M, LONG_59M, RandomFile
from benchmarks.timed_engine import TimedEngine

SEED = 1


@dataclass(frozen=True)
class Plan:
    files: tuple[RandomFile, ...] = (LONG_3M, LONG_59M)
    num_jobs: int = 32
    num_prefix: int = 1000
    num_tail: int = 16
    max_tokens: int = 16


def run_all(engine: TimedEngine, name: str, plan: Plan) -> Row:
    """All jobs of a run: one prefix for all runs, and tails of each run's own."""
    trace, prefixes = engine.begin(), engine.engine.prefixes
    prefixes.num_queried_tokens = prefixes.num_found_tokens = 0
    prefix, random = random_prompt(Random(SEED), plan.num_prefix), Random(name)
    for number in range(plan.num_jobs):
        prompt = (*prefix, *random_prompt(random, plan.num_tail))
        engine.submit(f"{name}-{number}", prompt, greedy(plan.max_tokens))
    engine.run()
    ttft = percentiles_ms(trace.ttft_s)
    return {
        "prefilled a job": len(prompt) - prefixes.num_found_tokens / plan.num_jobs,
        "TTFT p50 ms": ttft["p50"],
        "TTFT p99 ms": ttft["p99"],
        "total s": trace.wall_s,
        "hit rate": prefixes.num_found_tokens / max(1, prefixes.num_queried_tokens),
    }


def runs(file: RandomFile, plan: Plan) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        fields = {"model": file.write(Path(folder)), "slots": plan.num_jobs, "threads": 1}
        fields["context_tokens"] = 2 * plan.num_prefix
        off = TimedEngine.load(**fields, prefix_cache=False)
        yield {"model": file.shape, "cache": "off", **run_all(off, "first", plan)}
        on = TimedEngine.load(**fields, prefix_cache=True)
        yield {"model": file.shape, "cache": "on", **run_all(on, "first", plan)}
        yield {"model": file.shape, "cache": "on, prefix there", **run_all(on, "again", plan)}


def measure(plan: Plan) -> Iterator[Table]:
    begins = f"{plan.num_jobs} jobs that begin with the same {plan.num_prefix:,} tokens"
    found = [row for file in plan.files for row in runs(file, plan)]
    yield Table(found, f"{begins}, with {plan.num_tail} of their own")


BENCHMARK = Benchmark("prefix", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
