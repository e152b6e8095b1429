"""llama.cpp's programs: what they are asked, and what is read of what they print."""

from pathlib import Path

import pytest
import torch

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.llama_cpp import BATCHED, SINGLE, SYSTEM, llama_cpp
from benchmarks.gpu.scale import DRY
from benchmarks.gpu.step import NotHere

pytestmark = pytest.mark.long

#: What they print of two and three tests, but for fields that nobody reads.
PRINTED = {
    SINGLE: """ggml_cuda_init: found 1 CUDA devices
[
  {
    "build_number": 5163, "backends": "CUDA", "n_prompt": 0, "n_gen": 8, "n_depth": 24,
    "avg_ns": 40000000, "stddev_ns": 1453752, "samples_ns": [ 36000000, 44000000 ]
  }
]
""",
    BATCHED: """
{"n_kv_max": 288, "pp": 24, "tg": 8, "pl": 2, "n_kv": 64, "t_pp": 0.05, "t_tg": 0.07, "speed": 533.3}
{"n_kv_max": 288, "pp": 24, "tg": 8, "pl": 4, "n_kv": 128, "t_pp": 0.1, "t_tg": 0.088, "speed": 680.8}
{"n_kv_max": 288, "pp": 64, "tg": 8, "pl": 2, "n_kv": 144, "t_pp": 0.14, "t_tg": 0.08, "speed": 654.5}

llama_perf_context_print: load time = 100 ms
""",
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(DRY, torch.device("cpu"), tmp_path / "models", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Programs that note what they are asked, and print what was recorded."""
    for name, text in PRINTED.items():
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / name).write_text(f'#!/bin/sh\ncd {tmp_path}\necho "$@" >>asked\ncat {name}.txt\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_steps_and_prompts_are_read_from_what_the_programs_print(bench: Bench, folder: Path) -> None:
    found = list(llama_cpp(bench, Format.Q8_0, folder))
    assert [(one.workload, one.case, one.runs) for one in found] == [
        ("W1", "Q8_0, 1 x 24 in / 8 out, a steady step", (4.5, 5.5)),
        ("W2", "Q8_0, 4 x 24 in / 8 out, a steady step", (11.0,)),
        ("W5", "Q8_0, 2 x 64 to all first tokens", (pytest.approx(140.0),)),
    ]
    assert {one.system for one in found} == {SYSTEM}


def test_they_are_asked_for_the_same_shapes_of_a_file_that_is_there(bench: Bench, folder: Path) -> None:
    list(llama_cpp(bench, Format.Q8_0, folder))
    model = bench.models / "dry-run.Q8_0.gguf"
    assert model.stat().st_size > 1e5
    assert (folder / "asked").read_text().splitlines() == [
        f"-m {model} -ngl 99 -fa 1 -p 0 -n 8 -d 24 -r 3 -o json",
        f"-m {model} -ngl 99 -fa on -npp 24,64 -ntg 8 -npl 2,4 -c 288 --output-format jsonl",
    ]


def test_one_of_the_two_programs_is_enough(bench: Bench, folder: Path) -> None:
    (folder / BATCHED).unlink()
    assert [one.workload for one in llama_cpp(bench, Format.Q8_0, folder)] == ["W1"]


def test_without_a_program_it_is_not_here(bench: Bench, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(NotHere, match=SINGLE):
            list(llama_cpp(bench, Format.Q8_0, folder))
