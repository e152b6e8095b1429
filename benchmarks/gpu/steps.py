"""What each step does, by name. A step writes what it finds into the journal as it finds it."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.step import NotHere

#: What the project needs, and the name by which each says its version.
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "gguf",
    "tokenizers",
    "pydantic",
    "celery",
    "redis",
    "structlog",
)
#: Our own modules that each kind of step begins with.
MODULES = (
    "llama_herd.model.llama2",
    "llama_herd.worker.loading.loaded_model",
    "llama_herd.cli.worker.command",
)


@dataclass(frozen=True)
class StepOptions:
    """What the command line says about a step."""

    name: str
    words: tuple[str, ...]
    journal: Journal
    after: tuple[Journal, ...]  # of calls before
    is_rehearsed: bool
    is_short: bool
    format: str
    off: tuple[str, ...]
    models: Path
    llama_cpp: Path | None

    @property
    def journals(self) -> tuple[Journal, ...]:
        """What is known by now, the last at the end."""
        return (*self.after, self.journal)


def run(options: StepOptions) -> int:
    """Run one step; its exit code."""
    return STEPS[options.name](options) or 0


def _conditions(options: StepOptions) -> None:
    """What machine this is, and what can be imported on it. Nothing here needs a package of ours."""
    found: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in (*PACKAGES, *MODULES):
        started = perf_counter()
        try:
            module = importlib.import_module(name)
            found[name] = getattr(module, "__version__", "imported")
        except Exception as error:  # whatever stands in the way is what this step is to find out
            found[name] = f"{type(error).__name__}: {error}"
        found[f"{name} s"] = round(perf_counter() - started, 2)
    found["gcc"] = shutil.which("gcc") or shutil.which("cc")
    found["Python.h"] = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    found["nvidia-smi"] = _said(
        "nvidia-smi",
        "--query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm",
        "--format=csv,noheader",
    )
    found["commit"] = _said("git", "rev-parse", "--short", "HEAD")
    options.journal.add("conditions", step=options.name, **found)


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}"
    return done.stdout.strip() or done.stderr.strip()[-200:]


def _laws(options: StepOptions) -> int:
    from benchmarks.gpu import laws

    # Captured steps first: of the others there are many, and they may have to wait for the next run.
    on_card = (
        "-m",
        "gpu",
        "tests/gpu/test_steps.py",
        "tests/gpu/test_mixed_steps.py",
        "tests/gpu/test_laws.py",
    )
    tests = ("-m", "not gpu", "tests/benchmarks/test_floors.py") if options.is_rehearsed else on_card
    return 1 if laws.run(options.journal, options.name, tests) else 0


def _ceilings(options: StepOptions) -> None:
    """Without a module of ours, too: it must hold wherever torch runs."""
    import torch

    from benchmarks.gpu.ceilings import measure_ceilings

    device = torch.device("cpu" if options.is_rehearsed else "cuda:0")
    probes = (1 << 24, 128) if options.is_rehearsed else (1 << 33, 8_192)
    options.journal.note_ceilings(measure_ceilings(device, *probes))


def _kernel(options: StepOptions) -> int:
    """One kernel, or why there is none here."""
    import numpy as np
    import torch

    has_card = torch.cuda.is_available()
    if not has_card:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
        if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
            raise NotHere("no card, and triton's interpreter needs numpy below 2.4")
    if importlib.util.find_spec("triton") is None:
        raise NotHere("triton is not installed")
    from benchmarks.gpu.kernel_cases import cases, measured

    device, (name,) = torch.device("cuda:0" if has_card else "cpu"), options.words
    is_right = True
    for case in cases(name, device, is_small=not has_card):
        facts = measured(case, device, is_timed=has_card and not options.is_short)
        is_right &= facts["is_right"]
        options.journal.add("kernel", step=options.name, kernel=name, **facts)
        print(facts, flush=True)
    return 0 if is_right else 1


def _same(options: StepOptions) -> None:
    from benchmarks.gpu.engine_runs import equal_ids

    for fact in equal_ids(_bench(options, off=()), options.off):
        options.journal.add("fact", step=f"same {','.join(options.off)}", **fact)
        print(fact, flush=True)


def _engine(work: str) -> Callable[[StepOptions], None]:
    def run(options: StepOptions) -> None:
        from benchmarks.floors import Format
        from benchmarks.gpu import engine_runs

        _note_all(
            options, getattr(engine_runs, work)(_bench(options), Format[options.format], *options.words)
        )

    return run


def _profile(options: StepOptions) -> None:
    from benchmarks.floors import Format
    from benchmarks.gpu.engine_runs import profiles

    for profile, measurement in profiles(_bench(options), Format[options.format]):
        with (options.journal.folder / "profile.txt").open("a") as file:
            without = "".join(f", no {name}" for name in options.off)
            file.write(f"{options.format}{without}: {profile.text()}\n")
        print(profile.text(), flush=True)
        _note_all(options, [measurement])


def _mixed(options: StepOptions) -> None:
    from benchmarks.floors import Format
    from benchmarks.gpu.mixed import mixed

    _note_all(options, mixed(_bench(options), Format[options.format]))


def _queue(options: StepOptions) -> None:
    from benchmarks.gpu import queue_runs

    if options.words[0] == "W3":
        _note_all(options, queue_runs.saturation(_bench(options)))
        return
    known = [one for journal in options.journals for one in journal.measurements if one.workload == "W3"]
    rates = [one.value for one in known if one.part == queue_runs.QUEUED]
    _note_all(options, queue_runs.arrivals(_bench(options), rates[-1] if rates else None))


def _kills(options: StepOptions) -> None:
    from benchmarks.gpu.kills import kills

    _note_all(options, kills(_bench(options)))


def _start(options: StepOptions) -> None:
    from benchmarks.floors import Format
    from benchmarks.gpu import first_token

    _note_all(options, first_token.measure(_bench(options), Format[options.format]))


def _peer(options: StepOptions) -> None:
    if options.words[0] == "llama.cpp":
        from benchmarks.floors import Format
        from benchmarks.gpu.llama_cpp import llama_cpp

        _note_all(options, llama_cpp(_bench(options), Format[options.format], options.llama_cpp))
        return
    from benchmarks.gpu.peers import transformers

    _note_all(options, transformers(_bench(options)))


def _note_all(options: StepOptions, measurements: Iterable[Measurement]) -> None:
    for measurement in measurements:
        options.journal.note(options.name, measurement)
        print(measurement, flush=True)


def _bench(options: StepOptions, off: tuple[str, ...] | None = None) -> Any:
    """The bench, on the card, which is pinned before torch is imported."""
    from llama_herd.worker.loading.device import pin_device

    device = pin_device("cpu" if options.is_rehearsed else "cuda:0")
    import torch

    from benchmarks.gpu.bench import Bench
    from benchmarks.gpu.choices import switched_off
    from benchmarks.gpu.scale import DRY, FULL

    names = options.off if off is None else off
    return Bench(
        DRY if options.is_rehearsed else FULL,
        torch.device(device),
        options.models,
        next((one.ceilings for one in reversed(options.journals) if one.ceilings), None),
        names,
        switched_off(names),
        num_runs=1 if options.is_short or options.is_rehearsed else 3,
    )


STEPS: Mapping[str, Callable[[StepOptions], int | None]] = {
    "conditions": _conditions,
    "laws": _laws,
    "ceilings": _ceilings,
    "kernel": _kernel,
    "same": _same,
    "decode": _engine("decode"),
    "draws": _engine("draws"),
    "prefill": _engine("prefill"),
    "saturation": _engine("saturation"),
    "mixed": _mixed,
    "profile": _profile,
    "queue": _queue,
    "kills": _kills,
    "start": _start,
    "peer": _peer,
}
