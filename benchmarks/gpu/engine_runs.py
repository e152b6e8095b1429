"""W1, W2, W3s, W5, W7 and W8 by the engine alone, no queue; and whether choices change ids."""

import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from benchmarks.floors import Floors, Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.choices import switched_off
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.profiling import StepProfile, profile_decode
from benchmarks.gpu.scale import DRAWS, Load
from benchmarks.gpu.trace import run as run_load
from benchmarks.timed_engine import TimedEngine, Trace
from llama_herd.worker.engine.prefill import bucket_of
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

GB = 1e9


@dataclass(frozen=True)
class EngineRun:
    """A model of random weights, loaded for a load, and what is to be done with it."""

    bench: Bench
    format: Format
    largest: Load

    @cached_property
    def settings(self) -> WorkerSettings:
        return self.bench.settings(self.bench.hollow_model(self.format), self.largest)

    @cached_property
    def model(self) -> LoadedModel:
        return self.bench.load(self.settings)

    @cached_property
    def engine(self) -> TimedEngine:
        return TimedEngine(self.model, self.settings)

    def run(self, load: Load, seed: int) -> Trace:
        return run_load(self.engine, load, seed)

    def traces(self, load: Load) -> list[Trace]:
        """A warm-up that does not count, then the runs; none finds a prompt of another in the cache."""
        return [self.run(load, seed) for seed in range(1 + self.bench.num_runs)][1:]

    def steps_ms(self, load: Load) -> list[float]:
        return [1_000 * trace.step_s(load.num_rows) for trace in self.traces(load)]

    def floor_ms(self, seconds: Callable[[Floors], float]) -> float | None:
        """A floor in milliseconds, where ceilings are known."""
        return self.bench.floor(self.format, lambda floors: 1_000 * seconds(floors))

    def step_floor_ms(self, load: Load) -> float | None:
        context = load.num_in + load.num_out / 2
        return self.floor_ms(lambda floors: floors.decode_s(load.num_rows, context))

    def measurement(
        self, workload: str, case: str, unit: str, runs: list[float], floor: float | None, part: str = ""
    ) -> Measurement:
        note = f"kernels: {self.model.plan.form.kernels.note}"
        return self.bench.measurement(workload, self.format, case, unit, runs, floor, note, part)


def decode(bench: Bench, format: Format) -> Iterator[Measurement]:
    """W1, the time between one request's tokens; W2, between the steps of a steady batch; W7 of it."""
    run = EngineRun(bench, format, bench.scale.batch)
    for workload, load in (("W1", bench.scale.single), ("W2", bench.scale.batch)):
        yield run.measurement(workload, step_case(load), "ms", run.steps_ms(load), run.step_floor_ms(load))
    yield _memory(run)


def _memory(run: EngineRun) -> Measurement:
    """W7: what a full batch takes beyond the file's weights and the cache."""
    is_gpu = run.bench.device.type == "cuda"
    if is_gpu:
        peak_bytes = torch.cuda.max_memory_reserved()
    else:
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    extra = peak_bytes - run.settings.model.stat().st_size - run.model.cache.storage.nbytes
    what = "peak reserved" if is_gpu else "resident set"
    return run.measurement("W7", f"{what} - file - KV cache", "GB", [extra / GB], 0.0)


def draws(bench: Bench, format: Format) -> Iterator[Measurement]:
    """W2 by each way to draw: what the operators of a draw take, and what leaves the graph."""
    run = EngineRun(bench, format, bench.scale.batch)
    for draw in DRAWS:
        load = replace(bench.scale.batch, draw=draw)
        case = f"{step_case(load)} by its draw"
        yield run.measurement("W2", case, "ms", run.steps_ms(load), run.step_floor_ms(load), draw)


def prefill(bench: Bench, format: Format) -> Iterator[Measurement]:
    """W5: prompts that come together, until all have their first token."""
    load = bench.scale.prompts
    run = EngineRun(bench, format, load)
    runs = [1_000 * trace.all_first_tokens_s for trace in run.traces(load)]
    floor = run.floor_ms(lambda floors: floors.prefill_s(load.num_requests, load.num_in))
    yield run.measurement("W5", prompts_case(load), "ms", runs, floor)


def saturation(bench: Bench, format: Format, *workloads: str) -> Iterator[Measurement]:
    """W3s and W3 without their queue: many requests at once, the whole run; and the steps of each."""
    loads = bench.saturating(format)
    warm = loads["W3s"]
    run = EngineRun(bench, format, warm)
    # As many as there are rows, so that every shape of a step has been seen.
    run.run(replace(warm, num_requests=warm.num_rows, num_out=min(8, warm.num_out), spread=0), seed=-1)
    for workload in workloads or loads:
        load, steps = loads[workload], list[NotedStep]()
        with _noted(run.engine.engine.scheduler.prefill, steps):
            rate = run.run(load, seed=0).tokens_per_s
        case, floor = saturation_case(load), bench.saturation_floor(format, load)
        yield run.measurement(workload, case, "tok/s", [rate], floor, "engine alone")
        for most, some in groupby(sorted(steps), key=lambda one: bucket_of(one.prompt_tokens)):
            times_ms = [round(1_000 * one.seconds, 1) for one in some]
            yield run.measurement("steps", case, "ms", times_ms, None, f"up to {most} prompt tokens")


class NotedStep(NamedTuple):
    """A step of the engine."""

    prompt_tokens: int
    seconds: float


@contextmanager
def _noted(budget: PrefillBudget, steps: list[NotedStep]) -> Iterator[None]:
    """Add all steps that the budget is told of meanwhile."""
    note = budget.note

    def noted(num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        steps.append(NotedStep(num_prompt_tokens, seconds))
        note(num_prompt_tokens, num_decoding, seconds)

    with patch.object(budget, "note", noted):
        yield


def profiles(bench: Bench, format: Format) -> Iterator[tuple[StepProfile, Measurement]]:
    """Where the time of a decode step goes, by the number of rows.

    W8: how much of it the device waits: the host's time that nothing hides.
    """
    for load in bench.scale.profiled:
        run = EngineRun(bench, format, load)
        step_s = run.run(load, seed=0).step_s(load.num_rows)
        profile = profile_decode(run.model, run.settings, load, bench.scale.num_profiled_steps)
        idle = max(0.0, 1 - profile.busy_s_per_step / step_s)
        part = f"{load.num_rows} rows"
        yield profile, run.measurement("W8", "idle share of a step", "%", [100 * idle], 0.0, part)
        del run


def equal_ids(bench: Bench, names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Whether greedy ids are the same with choices and without them, by the number of rows.

    Random weights make near ties, which another order of sums may turn: a share below 1 is no proof of a
    fault, and a first difference at token 0 nearly is.
    """
    config = replace(bench.scale.config, num_layers=min(4, bench.scale.config.num_layers))
    path = bench.hollow_model(Format.BF16, config)
    loads = [Load(rows, bench.scale.batch.num_in // 2, 16, rows) for rows in bench.scale.compared_rows]
    found = []
    for choices in ({}, switched_off(names)):
        settings = replace(bench, choices=choices).settings(path, loads[-1])
        model = bench.load(settings)
        engine = TimedEngine(model, settings)
        found.append([run_load(engine, load, seed=7).ids for load in loads])
    for load, ours, others in zip(loads, *found, strict=True):
        pairs = [(a, b) for name in ours for a, b in zip(ours[name], others[name], strict=True)]
        firsts = [
            next((i for i, (a, b) in enumerate(zip(ours[name], others[name], strict=True)) if a != b), None)
            for name in ours
        ]
        yield {
            "rows": load.num_rows,
            "without": list(names),
            "equal": sum(a == b for a, b in pairs) / len(pairs),
            "first_difference": min((first for first in firsts if first is not None), default=None),
        }


def step_case(load: Load) -> str:
    return f"{load.label}, a steady step"


def saturation_case(load: Load) -> str:
    return f"{load.label}, {load.num_rows} rows, the whole run"


def prompts_case(load: Load) -> str:
    return f"{load.num_requests} x {load.num_in} to all first tokens"
