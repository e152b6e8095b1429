"""Weights of every type: what they take, how fast they are read, and what a worker does with such a file.

    python -m benchmarks.weights [--write]

First each type by itself: values a second of `dequantize` and of the gguf package, on the same blocks.
Then files of 1.1 B random weights, with types mixed as in llama.cpp: `herd generate --local` of one token,
from the start of the command, with its peak memory. Last the engine alone at the default settings and at the
ones it would have where bfloat16 is not native: tokens a second of a prompt of 512, and of 1, 8, 32 rows.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.speed.contender import OURS
from benchmarks.speed.files import MEDIUM, PRESETS, RandomFile
from benchmarks.speed.rounds import Cell
from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.dequantize import SUPPORTED_TYPES, dequantize

VALUES = (1024, 4096)
ROUNDS = 5
#: What the engine is timed at: a long prompt, and steps of rows with short ones.
CELLS = (Cell("prompt of 512", 512), *(Cell(f"{rows} rows", rows, (3,) * rows) for rows in (1, 8, 32)))
STEPS = 16


@dataclass(frozen=True)
class Setting:
    """Under which settings a file is looked at."""

    name: str
    variables: dict[str, str]


SETTINGS = (
    Setting("defaults", {}),
    Setting("float32, 16 prompt tokens", {"HERD_DTYPE": "float32", "HERD_PREFILL_TOKENS": "16"}),
    Setting("in blocks", {"HERD_WEIGHTS": "quantized"}),
)


def measure() -> Report:
    with TemporaryDirectory() as folder:
        files = {preset: RandomFile("1.1B", MEDIUM, preset).write(Path(folder)) for preset in PRESETS}
        starts = [
            {"file": name, "bytes": path.stat().st_size, "settings": setting.name, **start(path, setting)}
            for name, path in files.items()
            for setting in SETTINGS
        ]
        speeds = [{"settings": setting.name, **speed(files["Q8_0"], setting)} for setting in SETTINGS[:2]]
    types = [type_speed(type) for type in SUPPORTED_TYPES]
    return {
        "benchmark": "weights",
        "types": types,
        "starts": starts,
        "speeds": speeds,
        "conditions": conditions(),
    }


def type_speed(type: GGMLType) -> dict[str, Any]:
    """Of one thread, in CPU time, the better of some rounds each, which take turns."""
    torch.set_num_threads(1)
    blocks = stored_blocks(np.random.default_rng(0).standard_normal(VALUES, dtype=np.float32), type)
    ours_s, theirs_s = [], []
    for _ in range(ROUNDS):
        ours, seconds = _timed(lambda: dequantize(torch.from_numpy(blocks), type))
        ours_s.append(seconds)
        theirs, seconds = _timed(lambda: gguf.quants.dequantize(blocks, type))
        theirs_s.append(seconds)
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    return {
        "type": type.name,
        "bytes_per_weight": round(block_bytes / block_values, 3),
        "values_per_s": round(blocks.shape[0] * VALUES[1] / max(min(ours_s), 1e-6)),
        "gguf_values_per_s": round(blocks.shape[0] * VALUES[1] / max(min(theirs_s), 1e-6)),
        "max_error": float(np.abs(ours.numpy() - theirs).max()),
    }


def start(path: Path, setting: Setting) -> dict[str, float]:
    """Seconds and memory of a command that computes one token."""
    command = [sys.executable, "-m", "llama_herd.worker.cli", "generate", "--local", "--model", str(path)]
    command += ["w1 w2", "--max-tokens", "1"]
    started_s = perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **setting.variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return {"seconds": round(perf_counter() - started_s, 2), "peak_bytes": 1024 * usage.ru_maxrss}


def speed(path: Path, setting: Setting) -> dict[str, float]:
    """Tokens a second of the engine alone, in a process of its own."""
    with replace(OURS, variables=setting.variables).start(path, threads=0) as running:
        for cell in CELLS:  # warms up
            cell.seconds(running, 1)
        seconds = [cell.seconds(running, STEPS) for cell in CELLS]
    if running.death:
        raise RuntimeError(f"the engine with {path.name} and {setting.name} died: {running.death}")
    return {
        cell.name: round(cell.num_tokens / taken_s, 1)
        for cell, taken_s in zip(CELLS, seconds, strict=True)
        if taken_s
    }


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    started_s = process_time()
    result = act()
    return result, process_time() - started_s


def tables(report: Report) -> Iterator[Table]:
    yield Table(
        ["type", "bytes a weight", "M values/s", "gguf package", "max error"],
        [
            [
                one["type"],
                one["bytes_per_weight"],
                one["values_per_s"] / 1e6,
                one["gguf_values_per_s"] / 1e6,
                one["max_error"],
            ]
            for one in report["types"]
        ],
        "Reading blocks, one thread, CPU time",
    )
    yield Table(
        ["file", "GB", "settings", "seconds to one token", "peak GB", "peak / file"],
        [
            [
                one["file"],
                one["bytes"] / 1e9,
                one["settings"],
                one["seconds"],
                one["peak_bytes"] / 1e9,
                one["peak_bytes"] / one["bytes"],
            ]
            for one in report["starts"]
        ],
        "`herd generate --local` of one token, 1.1 B weights",
    )
    yield Table(
        ["settings", *(cell.name for cell in CELLS)],
        [[one["settings"], *(one[cell.name] for cell in CELLS)] for one in report["speeds"]],
        "Engine alone, the Q8_0 file, tokens a second",
    )


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
