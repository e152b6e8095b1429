"""W1, W2, W5, W7 and W8: the engine alone in this process, no queue."""

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.profiling import profile_decode
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import Trace, run_engine
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

DEQUANTISED = "Q8_0 weights are dequantised at load, so that a step reads as many bytes as with BF16"


@dataclass(frozen=True)
class EngineRun:
    """A loaded model and what is to be done with it."""

    bench: Bench
    format: Format
    settings: WorkerSettings
    model: LoadedModel

    def traces(self, load: Load) -> list[Trace]:
        """A warm-up that does not count, then the runs; none finds a prompt of another in the cache."""
        num_runs = 1 + self.bench.scale.num_runs
        return [run_engine(self.model, self.settings, load, seed) for seed in range(num_runs)][1:]

    def measurement(
        self, workload: str, case: str, unit: str, runs: list[float], floor: float | None
    ) -> Measurement:
        note = "" if self.format is Format.BF16 else DEQUANTISED
        return Measurement(workload, f"{self.format.name}, {case}", OURS, unit, tuple(runs), floor, note)


def single(run: EngineRun) -> Measurement:
    """W1: one request, the time between its tokens."""
    load = run.bench.scale.single
    runs = [1000 * trace.step_s(1) for trace in run.traces(load)]
    return run.measurement("W1", step_case(load), "ms", runs, _step_floor_ms(run, load))


def batch(run: EngineRun) -> Measurement:
    """W2: a steady batch, the time between its steps."""
    load = run.bench.scale.batch
    runs = [1000 * trace.step_s(load.num_rows) for trace in run.traces(load)]
    return run.measurement("W2", step_case(load), "ms", runs, _step_floor_ms(run, load))


def prompts(run: EngineRun) -> Measurement:
    """W5: prompts that come together, until all have their first token."""
    load = run.bench.scale.prompts
    runs = [1000 * trace.all_first_tokens_s for trace in run.traces(load)]
    floor_ms = 1000 * run.bench.floors(run.format).prefill_s(load.num_requests, load.num_in)
    return run.measurement("W5", prompts_case(load), "ms", runs, floor_ms)


def memory(run: EngineRun) -> Measurement:
    """W7: what a full batch takes beyond the file's weights and the cache."""
    is_gpu = run.bench.device.type == "cuda"
    run_engine(run.model, run.settings, run.bench.scale.batch, seed=-1)
    if is_gpu:
        peak_bytes = torch.cuda.max_memory_reserved()
    else:
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    extra = peak_bytes - run.settings.model.stat().st_size - run.model.cache.num_bytes
    what = "peak reserved" if is_gpu else "resident set"
    return run.measurement("W7", f"{what} - file - KV cache", "GB", [extra / 1e9], 0.0)


def idle_share(run: EngineRun) -> Measurement:
    """W8: how much of a steady step the device waits: the host's time that nothing hides."""
    load = run.bench.scale.batch
    step_s = run_engine(run.model, run.settings, load, seed=-2).step_s(load.num_rows)
    profile = profile_decode(run.model, run.settings, load, run.bench.scale.num_profiled_steps)
    idle = max(0.0, 1 - profile.busy_s_per_step / step_s)
    return run.measurement("W8", f"{load.label}, idle share of a step", "%", [100 * idle], 0.0)


class Workload(NamedTuple):
    """How it is measured, and in which formats."""

    work: Callable[[EngineRun], Measurement]
    formats: tuple[Format, ...]


#: W1q is W1 with quantised weights.
WORKLOADS = {
    "W1": Workload(single, (Format.BF16,)),
    "W1q": Workload(single, (Format.Q8_0,)),
    "W2": Workload(batch, (Format.BF16, Format.Q8_0)),
    "W5": Workload(prompts, (Format.BF16, Format.Q8_0)),
    "W7": Workload(memory, (Format.BF16, Format.Q8_0)),
    "W8": Workload(idle_share, (Format.BF16,)),
}


def measure(bench: Bench, names: set[str]) -> Iterator[Measurement]:
    """All chosen workloads, format by format, so that each model is loaded once."""
    chosen = [workload for name, workload in WORKLOADS.items() if name in names]
    for format in (Format.BF16, Format.Q8_0):
        works = [workload.work for workload in chosen if format in workload.formats]
        if works:
            yield from _measure_format(bench, format, works)


def _measure_format(
    bench: Bench, format: Format, works: list[Callable[[EngineRun], Measurement]]
) -> Iterator[Measurement]:
    settings = bench.settings(format, bench.scale.batch)
    run = EngineRun(bench, format, settings, bench.load(settings))
    for work in works:
        yield work(run)


def step_case(load: Load) -> str:
    return f"{load.label}, a steady step"


def prompts_case(load: Load) -> str:
    return f"{load.num_requests} x {load.num_in} to all first tokens"


def _step_floor_ms(run: EngineRun, load: Load) -> float:
    context = load.num_in + load.num_out / 2
    return 1000 * run.bench.floors(run.format).decode_s(load.num_rows, context)
