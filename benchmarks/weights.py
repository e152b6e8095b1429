"""Weights of every type: how fast they are read, and what a command takes until its first token.

    python -m benchmarks.weights types|starts [--files FOLDER] [--write]

- `types`: values a second of `dequantize` and of the gguf package, on the same blocks, by one thread, in CPU
  time.
- `starts`: files of 1.1 B random weights, with types mixed as in llama.cpp. `herd generate --local` of one
  token, from the start of the command, with its peak memory, in every form of the weights.

FOLDER keeps the files, whose writing takes minutes, for the next call.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from benchmarks.harness import Benchmark, in_turns, main, timed_s
from benchmarks.report import Row, Table
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.supported_types import SUPPORTED_TYPES
from llama_herd.worker.settings import BUNDLED_MODEL

VALUES = (1024, 4096)


@dataclass(frozen=True)
class Types:
    """All but the one that holds numbers as they are. The better round of each counts."""

    types: tuple[str, ...] = tuple(type.name for type in SUPPORTED_TYPES if type is not GGMLType.F32)
    rounds: int = 5


@dataclass(frozen=True)
class Starts:
    presets: tuple[str, ...] = ("Q4_0", "Q8_0", "Q4_K_M", "BF16", "Q5_K_M")
    forms: tuple[str, ...] = ("auto", "quantized", "dense")
    files: str = ""


def type_speed(type: GGMLType, rounds: int) -> Row:
    """Values a second, of ours and of the gguf package's, and how far they are apart."""
    blocks = stored_blocks(np.random.default_rng(0).standard_normal(VALUES, dtype=np.float32), type)
    ways = {
        "ours": partial(dequantize, torch.from_numpy(blocks), type),
        "theirs": partial(gguf.quants.dequantize, blocks, type),
    }
    found = in_turns({name: partial(timed_s, way, process_time) for name, way in ways.items()}, rounds)
    ours, theirs = (blocks.size / max(min(times_s), 1e-6) for times_s in found.values())
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    scale = block_values / block_bytes / 1e6
    return {
        "type": type.name,
        "bytes a weight": round(block_bytes / block_values, 3),
        "M values/s": ours * scale,
        "gguf package": theirs * scale,
        "times as fast": ours / theirs,
        "max error": float(np.abs(ways["ours"]().numpy() - ways["theirs"]()).max()),
    }


def measure_types(plan: Types) -> Iterator[Table]:
    torch.set_num_threads(1)
    rows = [type_speed(GGMLType[name], plan.rounds) for name in plan.types]
    yield Table(rows, "Reading blocks, one thread, CPU time")


def start(path: Path, form: str) -> tuple[float, int]:
    """Seconds and bytes of a command that computes one token, with the file in the page cache."""
    with path.open("rb") as file:
        while file.read(1 << 20):  # in pieces: a child's peak is never less than what its parent's once was
            pass
    command = [sys.executable, "-m", "llama_herd.cli", "generate", "--local", "--model", str(path)]
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


def measure_starts(plan: Starts) -> Iterator[Table]:
    bundled = {form: start(BUNDLED_MODEL, form)[1] for form in plan.forms}
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        for preset in plan.presets:
            path = RandomFile("1.1B", MEDIUM, preset).written(Path(plan.files or scratch))
            for form in plan.forms:
                seconds, peak_bytes = start(path, form)
                size = path.stat().st_size
                rows.append(
                    {
                        "file": preset,
                        "GB": size / 1e9,
                        "weights": form,
                        "seconds to one token": seconds,
                        "peak GB": peak_bytes / 1e9,
                        "over the bundled model's, files": (peak_bytes - bundled[form]) / size,
                    }
                )
    yield Table(rows, "`herd generate --local` of one token, 1.1 B weights")


TYPES = Benchmark("weights", __doc__, Types(), measure_types, part="types")
STARTS = Benchmark("weights", __doc__, Starts(), measure_starts, part="starts")

if __name__ == "__main__":
    main(TYPES, STARTS)
