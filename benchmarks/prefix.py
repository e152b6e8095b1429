"""What the prefix cache saves: jobs whose prompts begin with the same 1,000 tokens, with and without it.

    python -m benchmarks.prefix [--write]

The engine alone, on random models. All jobs come at once; with the cache the first computes the prefix and
the others wait for its pages. The last of the runs finds the prefix there from the start.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import LONG_BUNDLED, PLAIN_IDS, RANDOM_59M, Shape
from benchmarks.stopwatch import Stopwatch, percentiles_ms
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.sequence_info import SequenceInfo
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

SEED = 1


@dataclass(frozen=True)
class Plan:
    shapes: tuple[Shape, ...] = (LONG_BUNDLED, RANDOM_59M)
    num_jobs: int = 32
    num_prefix: int = 1000
    num_tail: int = 16
    max_tokens: int = 16


class Bench:
    """An engine, and how many prompt tokens each job left for it to compute."""

    def __init__(self, shape: Shape, plan: Plan, folder: Path, *, prefix_cache: bool) -> None:
        settings = WorkerSettings(
            model=shape.file(folder),
            slots=plan.num_jobs,
            context_tokens=2 * plan.num_prefix,
            prefix_cache=prefix_cache,
            threads=1,
            dtype="float32",
        )
        self._plan = plan
        self._model = LoadedModel.load(settings, "cpu")
        self._engine: Engine = self._model.engine(settings, self._note)
        self._watch = Stopwatch()
        self._prefilled: list[int] = []
        self._sequences: dict[SequenceInfo, Sequence] = {}  # those that have not started

    def run(self, name: str) -> dict[str, Any]:
        """All jobs of a run, from the first submission to the last token."""
        self._watch, self._prefilled = Stopwatch(), []
        prefixes = self._engine.prefixes
        prefixes.num_queried_tokens = prefixes.num_found_tokens = 0
        started_s = perf_counter()
        for number, prompt_ids in enumerate(self._prompts(name)):
            self._submit(f"{name}-{number}", prompt_ids)
        while self._engine.has_work:
            self._engine.step()
        return {
            "prefilled a job": round(mean(self._prefilled), 1),
            "all but the first": max(sorted(self._prefilled)[:-1]),
            "TTFT p50 ms": percentiles_ms(self._watch.ttft_s())["p50"],
            "TTFT p99 ms": percentiles_ms(self._watch.ttft_s())["p99"],
            "total s": round(perf_counter() - started_s, 3),
            "hit rate": round(prefixes.hit_rate, 3),
        }

    def _prompts(self, name: str) -> Iterator[tuple[int, ...]]:
        """One prefix for all runs, and tails of each run's own."""
        prefix = Random(SEED).choices(PLAIN_IDS, k=self._plan.num_prefix)
        random = Random(name)
        for _ in range(self._plan.num_jobs):
            yield (*prefix, *random.choices(PLAIN_IDS, k=self._plan.num_tail))

    def _submit(self, job_id: str, prompt_ids: tuple[int, ...]) -> None:
        sampling = SamplingParams(max_tokens=self._plan.max_tokens, temperature=0, ignore_eos=True)
        job = GenerationJob(prompt_ids=prompt_ids, sampling=sampling)
        self._watch.start(job_id)
        [sequence] = self._model.sequences(job_id, job, now_ms=0)
        self._sequences[sequence.info] = sequence
        self._engine.submit(sequence)

    def _note(self, outputs: list[StepOutput]) -> None:
        self._watch(outputs)
        started = [self._sequences.pop(output.sequence) for output in outputs if output.has_started]
        self._prefilled += [sequence.num_uncached for sequence in started]


def measure(plan: Plan) -> Report:
    runs = []
    with TemporaryDirectory() as folder:
        for shape in plan.shapes:
            off = Bench(shape, plan, Path(folder), prefix_cache=False)
            on = Bench(shape, plan, Path(folder), prefix_cache=True)
            runs += [
                {"model": shape.name, "cache": "off", **off.run("first")},
                {"model": shape.name, "cache": "on", **on.run("first")},
                {"model": shape.name, "cache": "on, prefix there", **on.run("again")},
            ]
    report_plan = {**asdict(plan), "shapes": [shape.name for shape in plan.shapes]}
    return {"benchmark": "prefix", "plan": report_plan, "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    plan, runs = report["plan"], report["runs"]
    begins = f"{plan['num_jobs']} jobs that begin with the same {plan['num_prefix']:,} tokens"
    title = f"{begins}, with {plan['num_tail']} of their own"
    yield Table(list(runs[0]), [list(run.values()) for run in runs], title)


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
