"""The program: ceilings, then each chosen part; what is measured is written at once."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from benchmarks.conditions import conditions, gpu_conditions
from benchmarks.floors import Format
from benchmarks.gpu import engine_runs, first_token, peers, queue_runs
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.ceilings import measure_ceilings
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.profiling import profile_decode
from benchmarks.gpu.report import report, write_into
from benchmarks.gpu.results import Call, Results
from benchmarks.gpu.scale import DRY, FULL


class Part(NamedTuple):
    """Workloads that are measured together, figure by figure."""

    name: str
    workloads: set[str]
    measure: Callable[[], Iterator[Measurement]]


def measure(
    *,
    device: str,
    is_dry: bool,
    names: set[str],
    models: Path,
    results_path: Path,
    commit: str,
    with_profile: bool,
) -> int:
    """Measure what is named and print the table; 1 when a part failed, which stops no other."""
    scale = DRY if is_dry else FULL
    results = Results.read(results_path)
    bench = Bench(scale, torch.device(device), models, measure_ceilings(torch.device(device), scale))
    call = results.begin(scale.name, conditions(commit) | gpu_conditions(), bench.ceilings)
    saturation = results.value("W3", OURS)
    all_parts = [
        Part("engine", set(engine_runs.WORKLOADS), lambda: engine_runs.measure(bench, names)),
        Part("queue", {"W3", "W4"}, lambda: queue_runs.measure(bench, names, saturation)),
        Part("first token", {"W6"}, lambda: first_token.measure(bench)),
        Part("static", {"static"}, lambda: peers.measure_static(bench)),
        Part("continuous", {"continuous"}, lambda: peers.measure_continuous(bench)),
    ]
    chosen = [part for part in all_parts if part.workloads & names]
    failed = [part.name for part in chosen if not _run(part, call, results)]
    if with_profile:
        _write_profile(bench, results_path.with_name(f"{results_path.stem}-profile.txt"))
    print(report(results))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def write_readme(results_path: Path, readme: Path) -> None:
    """Put the table of a results file between the README's marks."""
    write_into(readme, report(Results.read(results_path)))


def _run(part: Part, call: Call, results: Results) -> bool:
    """Whether a part came to its end. Its error is shown, and what it measured before stays."""
    started = perf_counter()
    try:
        for measurement in part.measure():
            print(f"{perf_counter() - started:7.1f} s  {measurement}", flush=True)
            call.measurements.append(measurement)
            results.write()
    except Exception:  # any failure of a peer or a part must leave time and results to the others
        traceback.print_exc()
        print(f"{part.name} failed after {perf_counter() - started:.1f} s", flush=True)
        return False
    return True


def _write_profile(bench: Bench, path: Path) -> None:
    settings = bench.settings(Format.BF16, bench.scale.batch)
    model = bench.load(settings)
    loads = (bench.scale.single, bench.scale.batch)
    texts = [profile_decode(model, settings, load, bench.scale.num_profiled_steps).text() for load in loads]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts))
    print("\n".join(texts))
