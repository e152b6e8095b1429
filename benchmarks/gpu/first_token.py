"""W6: from the start of a process to its first token, by the command that people use."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measurement import Measurement
from llama_herd.local.worker_process import child_environment

PROMPT = "w1 w2 w3"
MAX_TOKENS = 16


def measure(bench: Bench, format: Format) -> Iterator[Measurement]:
    """`herd generate --local`, with the file in the page cache."""
    model = bench.real_model(format)
    bench.free_memory()
    runs = [_start(bench, model) for _ in range(1 + bench.num_runs)][1:]
    ceilings, floor = bench.ceilings, None
    if ceilings is not None:
        floor = model.stat().st_size / ceilings.upload_bytes_per_s + ceilings.init_s
    case = "process start to first token, warm page cache"
    note = "the floor is the file at the pinned copy rate and the device's start"
    yield bench.measurement("W6", format, case, "s", runs, floor, note)


def _start(bench: Bench, model: Path) -> float:
    """Seconds until the text of the first token stands on standard output."""
    command = [sys.executable, "-m", "llama_herd", "generate", PROMPT, "--local"]
    options = ["--max-tokens", str(MAX_TOKENS), "--temperature", "0"]
    started = perf_counter()
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        env=child_environment(bench.settings(model, bench.scale.single)),
        bufsize=0,
    )
    with process:
        if process.stdout is None or not process.stdout.read(1):
            raise RuntimeError(f"`herd generate --local` ended with exit code {process.wait()} and no text")
        seconds = perf_counter() - started
        process.kill()
    return seconds
