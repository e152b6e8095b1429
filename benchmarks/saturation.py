"""Prompts that always wait: what the token budget of prefill makes of throughput and of the gaps in streams.

    python -m benchmarks.saturation [--write]

The engine alone, after a warm-up as in a worker, with several jobs a row from the beginning. All prompts have
256 tokens, no two begin alike, and outputs have 32 to 96. The budgets take turns, after a run that does not
count; a learnt one begins anew in each round, and has a second turn with jobs that can wait, as those of a
batch. Shown is the round with the median throughput.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.conditions import conditions
from benchmarks.load import Bench, Load, Run
from benchmarks.measured import Report, Table, run_command
from benchmarks.speed.files import MEDIUM, RandomFile
from llama_herd.tasks.priority import MIN_PRIORITY, can_wait
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

#: As HERD_PREFILL_TOKENS; the last one takes every prompt whole.
BUDGETS = (16, 32, 64, 8192)
LEARNT = 0


@dataclass(frozen=True)
class Way:
    """How prompts come into steps: by the budget, and by the priority of the jobs."""

    prefill_tokens: int
    priority: int = 0

    @property
    def name(self) -> str:
        budget = "learnt" if self.prefill_tokens == LEARNT else str(self.prefill_tokens)
        return f"{budget}, jobs can wait" if can_wait(self.priority) else budget


WAYS = (Way(LEARNT), Way(LEARNT, MIN_PRIORITY), *map(Way, BUDGETS))


@dataclass(frozen=True)
class Plan:
    """What to measure with one model."""

    name: str
    path: Path
    load: Load
    ways: tuple[Way, ...] = WAYS
    rounds: int = 3


def plans(folder: Path) -> Iterator[Plan]:
    medium = RandomFile("1.1B", MEDIUM, "Q4_0")
    yield Plan(BUNDLED_MODEL.stem, BUNDLED_MODEL, Load(short_prompt=256, max_tokens=64, num_jobs=160))
    load = Load(slots=16, short_prompt=256, max_tokens=64, num_jobs=32)
    yield Plan("1.1B Q4_0", medium.write(folder), load, rounds=1)


def measure_plan(plan: Plan) -> list[list[Run]]:
    """A list of rounds for each way."""
    threads = len(os.sched_getaffinity(0))
    settings = WorkerSettings.read(
        model=plan.path, slots=plan.load.slots, context_tokens=512, threads=threads, dtype="auto"
    )
    model = LoadedModel.load(settings, "cpu")
    few = replace(plan.load, num_jobs=plan.load.slots // 2)
    Bench(model, settings, few, plan.ways[-1].prefill_tokens).saturated()
    rounds = [
        [Bench(model, settings, plan.load, way.prefill_tokens).saturated(way.priority) for way in plan.ways]
        for _ in range(plan.rounds)
    ]
    return [list(runs) for runs in zip(*rounds, strict=True)]


def measure() -> Report:
    runs = []
    with TemporaryDirectory() as folder:
        for plan in plans(Path(folder)):
            by_way = zip(plan.ways, measure_plan(plan), strict=True)
            ways = [{"name": way.name, **asdict(way), "rounds": rounds} for way, rounds in by_way]
            runs.append({"model": plan.name, "load": asdict(plan.load), "ways": ways})
    return {"benchmark": "saturation", "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    head = ["prefill tokens", "tokens a second", "rows that decode", "gap p50 ms", "gap p95 ms", "gap p99 ms"]
    for run in report["runs"]:
        title = f"{run['model']}, {run['load']['num_jobs']} jobs at once, {run['load']['slots']} rows"
        yield Table(head, [_row(way["name"], way["rounds"]) for way in run["ways"]], title)


def _row(name: str, rounds: list[Run]) -> list[str | float]:
    middle = sorted(rounds, key=lambda one: one["tokens_per_s"])[len(rounds) // 2]
    return [name, middle["tokens_per_s"], middle["decoding_rows"], *middle["itl_ms"].values()]


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
