"""W6: from the start of a process to its first token, by the command that people use."""

import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measurement import OURS, Measurement
from llama_herd.worker.local.environment import child_environment

PROMPT = "w1 w2 w3"
MAX_TOKENS = 16


def measure(bench: Bench) -> Iterator[Measurement]:
    """`herd generate --local`, with the file in the page cache."""
    bench.free_memory()
    for format in (Format.BF16,) if bench.scale.is_dry else (Format.BF16, Format.Q8_0):
        runs = [_start(bench, format) for _ in range(1 + bench.scale.num_runs)][1:]
        num_bytes = bench.model_path(format).stat().st_size
        ceilings = bench.ceilings
        yield Measurement(
            "W6",
            f"{format.name}, process start to first token, warm page cache",
            OURS,
            "s",
            tuple(runs),
            num_bytes / ceilings.upload_bytes_per_s + ceilings.init_s,
            "the floor is the file at the pinned copy rate and the device's start",
        )


def _start(bench: Bench, format: Format) -> float:
    """Seconds until the text of the first token stands on standard output."""
    command = [sys.executable, "-m", "llama_herd.worker.cli", "generate", PROMPT, "--local"]
    options = ["--max-tokens", str(MAX_TOKENS), "--temperature", "0"]
    started = perf_counter()
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        env=child_environment(bench.settings(format, bench.scale.single)),
        bufsize=0,
    )
    with process:
        if process.stdout is None or not process.stdout.read(1):
            raise RuntimeError(f"`herd generate --local` ended with exit code {process.wait()} and no text")
        seconds = perf_counter() - started
        process.kill()
    return seconds
