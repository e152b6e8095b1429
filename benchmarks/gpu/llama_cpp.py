"""A peer: llama.cpp's own benchmarks, on a file of the same shape in the same format."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_runs import prompts_case, step_case
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.step import NotHere

SYSTEM = "llama.cpp"
#: One request at a time, and many.
SINGLE, BATCHED = "llama-bench", "llama-batched-bench"
NOTE = "forwards alone, without a draw"


def llama_cpp(bench: Bench, format: Format, folder: Path | None) -> Iterator[Measurement]:
    """W1 by llama-bench; W2 and W5 by llama-batched-bench. Raises NotHere without either of them."""
    there = [] if folder is None else [name for name in (SINGLE, BATCHED) if (folder / name).exists()]
    if folder is None or not there:
        raise NotHere(f"--llama-cpp names no folder with {SINGLE} or {BATCHED}")
    model, scale = bench.real_model(format), bench.scale
    bench.free_memory()
    every = ["-m", str(model), "-ngl", "99"]
    if SINGLE in there:
        one = scale.single
        sizes = ["-p", "0", "-n", str(one.num_out), "-d", str(one.num_in)]
        said = _said(folder, SINGLE, *every, "-fa", "1", *sizes, "-r", str(bench.num_runs), "-o", "json")
        for test in json.loads(said[said.index("[") :]):
            runs = [nanoseconds / 1e6 / test["n_gen"] for nanoseconds in test["samples_ns"]]
            yield _measurement("W1", format, step_case(one), runs)
    if BATCHED in there:
        many, prompts = scale.batch, scale.prompts
        # Each sequence has an equal part of the room, whether it needs it or not.
        room = many.num_rows * (max(many.num_in, prompts.num_in) + many.num_out)
        sizes = ["-npp", f"{many.num_in},{prompts.num_in}", "-ntg", str(many.num_out)]
        sizes += ["-npl", f"{prompts.num_rows},{many.num_rows}", "-c", str(room)]
        said = _said(folder, BATCHED, *every, "-fa", "on", *sizes, "--output-format", "jsonl")
        for line in said.splitlines():
            test = json.loads(line) if line.startswith("{") else {}
            shape = (test.get("pp"), test.get("pl"))
            if shape == (many.num_in, many.num_rows):
                yield _measurement("W2", format, step_case(many), [1e3 * test["t_tg"] / test["tg"]])
            if shape == (prompts.num_in, prompts.num_rows):
                yield _measurement("W5", format, prompts_case(prompts), [1e3 * test["t_pp"]])


def _measurement(workload: str, format: Format, case: str, runs: list[float]) -> Measurement:
    return Measurement(workload, f"{format.name}, {case}", SYSTEM, "ms", tuple(runs), note=NOTE)


def _said(folder: Path, name: str, *arguments: str) -> str:
    """What a program of the folder prints; its log goes to ours."""
    libraries = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH", ""))))
    done = subprocess.run(
        [str(folder / name), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
    )
    print(done.stdout, flush=True)
    return done.stdout
