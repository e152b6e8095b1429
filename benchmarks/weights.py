"""Weights of every type: what they take, how fast they are read, and what a worker does with such a file.

    python -m benchmarks.weights [--write]

First each type by itself: values a second of `dequantize` and of the gguf package, on the same blocks.
Then files of 1.1 B random weights, with types mixed as in llama.cpp: `herd generate --local` of one token,
from the start of the command, with its peak memory. Last the engine alone at the default settings and at the
ones it would have where bfloat16 is not native: tokens a second of a prompt of 512, and of 1, 8, 32 rows.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from benchmarks.shapes import PLAIN_IDS
from benchmarks.speed.files import MEDIUM, PRESETS, RandomFile
from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.dequantize import SUPPORTED_TYPES, dequantize
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

VALUES = (1024, 4096)
ROUNDS = 5
PROMPT_TOKENS = 512
ROWS = (1, 8, 32)
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
    command = [sys.executable, "-m", "benchmarks.weights", "--speed", str(path)]
    env = {**os.environ, **setting.variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def engine_speed(path: Path) -> dict[str, float]:
    settings = WorkerSettings.read(model=path, context_tokens=1024, slots=max(ROWS))
    model = LoadedModel.load(settings, "cpu")
    speeds = {"prompt": PROMPT_TOKENS / min(_prefill_s(model, settings) for _ in range(2))}
    for num_rows in ROWS:
        speeds[f"{num_rows} rows"] = num_rows * STEPS / _decode_s(model, settings, num_rows)
    model.close()
    return {name: round(value, 1) for name, value in speeds.items()}


def _prefill_s(model: LoadedModel, settings: WorkerSettings) -> float:
    engine = model.engine(settings, lambda outputs: None)
    ids = [PLAIN_IDS[0] + place % 100 for place in range(PROMPT_TOKENS)]
    job = GenerationJob(prompt_ids=tuple(ids), sampling=SamplingParams(max_tokens=1, temperature=0))
    return _run(model, engine, [job])


def _decode_s(model: LoadedModel, settings: WorkerSettings, num_rows: int) -> float:
    """Of steps in which all rows decode."""
    engine = model.engine(settings, lambda outputs: None)
    sampling = SamplingParams(max_tokens=STEPS + 2, temperature=0, ignore_eos=True)
    jobs = [GenerationJob(prompt_ids=(5 + row, 6, 7), sampling=sampling) for row in range(num_rows)]
    for number, job in enumerate(jobs):
        engine.submit(_confirmed(model, f"job-{number}", job))
    for _ in range(2):
        engine.step()
    started_s = perf_counter()
    for _ in range(STEPS):
        engine.step()
    return perf_counter() - started_s


def _run(model: LoadedModel, engine: Any, jobs: list[GenerationJob]) -> float:
    for number, job in enumerate(jobs):
        engine.submit(_confirmed(model, f"job-{number}", job))
    started_s = perf_counter()
    while engine.has_work:
        engine.step()
    return perf_counter() - started_s


def _confirmed(model: LoadedModel, job_id: str, job: GenerationJob) -> Any:
    (sequence,) = model.sequences(job_id, job, now_ms=0)
    return sequence


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
        ["settings", "prompt of 512", *(f"{rows} rows" for rows in ROWS)],
        [
            [one["settings"], one["prompt"], *(one[f"{rows} rows"] for rows in ROWS)]
            for one in report["speeds"]
        ],
        "Engine alone, the Q8_0 file, tokens a second",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--speed"]:
        print(json.dumps(engine_speed(Path(sys.argv[2]))))
    else:
        run_command(measure, tables, __doc__ or "")
