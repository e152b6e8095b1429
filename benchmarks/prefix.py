"""What the prefix cache saves: jobs whose prompts begin with the same 1,000 tokens, with and without it.

    python -m benchmarks.prefix [--write]

The engine alone, on random models. All jobs come at once; with the cache the first computes the prefix and
the others wait for its pages. The last of the runs finds the prefix there from the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, main, percentiles_ms
from benchmarks.jobs import greedy, random_prompt
from benchmarks.report import Row, Table
from benchmarks.shapes import LONG_BUNDLED, RANDOM_59M, Shape
from benchmarks.timed_engine import TimedEngine
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.sequence_info import SequenceInfo
from llama_herd.worker.engine.step_output import StepOutput

SEED = 1


@dataclass(frozen=True)
class Plan:
    shapes: tuple[Shape, ...] = (LONG_BUNDLED, RANDOM_59M)
    num_jobs: int = 32
    num_prefix: int = 1000
    num_tail: int = 16
    max_tokens: int = 16


class PrefixEngine(TimedEngine):
    """Notes how many prompt tokens each job left for it to compute."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._waiting: dict[SequenceInfo, Sequence] = {}
        self.prefilled: list[int] = []

    def note(self, outputs: list[StepOutput]) -> None:
        super().note(outputs)
        started = [self._waiting.pop(output.sequence) for output in outputs if output.has_started]
        self.prefilled += [sequence.num_uncached for sequence in started]

    def run_all(self, name: str, plan: Plan) -> Row:
        """All jobs of a run: one prefix for all runs, and tails of each run's own."""
        trace, self.prefilled = self.begin(), []
        prefixes = self.engine.prefixes
        prefixes.num_queried_tokens = prefixes.num_found_tokens = 0
        prefix, random = random_prompt(Random(SEED), plan.num_prefix), Random(name)
        for number in range(plan.num_jobs):
            prompt = (*prefix, *random_prompt(random, plan.num_tail))
            [sequence] = self.submit(f"{name}-{number}", prompt, greedy(plan.max_tokens))
            self._waiting[sequence.info] = sequence
        self.run()
        ttft = percentiles_ms(trace.ttft_s())
        return {
            "prefilled a job": mean(self.prefilled),
            "all but the first": max(sorted(self.prefilled)[:-1]),
            "TTFT p50 ms": ttft["p50"],
            "TTFT p99 ms": ttft["p99"],
            "total s": trace.wall_s,
            "hit rate": prefixes.hit_rate,
        }


def runs(shape: Shape, plan: Plan) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        fields = {"model": shape.file(Path(folder)), "slots": plan.num_jobs, "threads": 1, "dtype": "float32"}
        fields["context_tokens"] = 2 * plan.num_prefix
        off = PrefixEngine.load(**fields, prefix_cache=False)
        yield {"model": shape.name, "cache": "off", **off.run_all("first", plan)}
        on = PrefixEngine.load(**fields, prefix_cache=True)
        yield {"model": shape.name, "cache": "on", **on.run_all("first", plan)}
        yield {"model": shape.name, "cache": "on, prefix there", **on.run_all("again", plan)}


def measure(plan: Plan) -> Iterator[Table]:
    begins = f"{plan.num_jobs} jobs that begin with the same {plan.num_prefix:,} tokens"
    found = [row for shape in plan.shapes for row in runs(shape, plan)]
    yield Table(found, f"{begins}, with {plan.num_tail} of their own")


BENCHMARK = Benchmark("prefix", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
