"""What a command takes until its first token, by the type of the file and the form of the weights.

    python -m benchmarks.weights [--files FOLDER] [--write]

Files of 1.1 B random weights, with types mixed as in llama.cpp: `herd generate --local` of one token, from
the start of the command, with its peak memory. FOLDER keeps the files, whose writing takes minutes, for the
next call.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.harness import Benchmark, main
from benchmarks.report import Row, Table
from benchmarks.speed.files import MEDIUM, RandomFile
from llama_herd.ops.settings import BUNDLED_MODEL


@dataclass(frozen=True)
class Plan:
    presets: tuple[str, ...] = ("Q4_0", "Q8_0", "Q4_K_M", "BF16", "Q5_K_M")
    forms: tuple[str, ...] = ("auto", "quantized", "dense")
    files: str = ""


def start(path: Path, form: str) -> tuple[float, int]:
    """Seconds and bytes of a command that computes one token, with the file in the page cache."""
    with path.open("rb") as file:
        while file.read(1 << 20):  # in pieces: a child's peak is never less than what its parent's once was
            pass
    command = [sys.executable, "-m", "llama_herd", "generate", "--local", "--model", str(path)]
    started_s, null = perf_counter(), subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, "w1 w2", "--max-tokens", "1"],
        env={**os.environ, "HERD_WEIGHTS": form},
        stdout=null,
        stderr=null,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return perf_counter() - started_s, 1024 * usage.ru_maxrss


def measure(plan: Plan) -> Iterator[Table]:
    bundled = {form: start(BUNDLED_MODEL, form)[1] for form in plan.forms}
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        for preset in plan.presets:
            path = RandomFile("1.1B", MEDIUM, preset).written(Path(plan.files or scratch))
            size = path.stat().st_size
            for form in plan.forms:
                seconds, peak_bytes = start(path, form)
                row: Row = {
                    "file": preset,
                    "GB": size / 1e9,
                    "weights": form,
                    "seconds to one token": seconds,
                    "peak GB": peak_bytes / 1e9,
                    "over the bundled model's, files": (peak_bytes - bundled[form]) / size,
                }
                rows.append(row)
    yield Table(rows, "`herd generate --local` of one token, 1.1 B weights")


BENCHMARK = Benchmark("weights", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
