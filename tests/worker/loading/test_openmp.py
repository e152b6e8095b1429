"""A second OpenMP beside torch's changes no result, and is found."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from llama_herd.worker.loading.machine import openmp_runtimes
from tests.local.forked_python import run_forked
from tests.tiny import WIDE, write_tiny_gguf
from tests.worker.loading.openmp_twice import NUM_THREADS


def test_runtimes_are_known_by_their_names_and_counted_once(tmp_path: Path) -> None:
    files = [
        "/a b/libgomp.so.1",
        "/a b/libgomp.so.1",
        "/x/sentencepiece.libs/libgomp-6a29c32d.so.1.0.0",
        "/x/libiomp5.so",
        "/usr/lib/libomp.so.5",
        "/x/libcompute.so",
        "/x/libgomp.txt",
    ]
    maps = tmp_path / "maps"
    lines = [f"7f0-7f1 r-xp 00000000 fe:00 12     {file}" for file in files]
    maps.write_text("\n".join([*lines, "7f2-7f3 rw-p 00000000 00:00 0", ""]))
    assert openmp_runtimes(maps) == sorted({files[0], *files[2:5]})
    assert openmp_runtimes(tmp_path / "none") == []


@pytest.mark.long
def test_with_a_second_one_at_work_a_model_says_the_same(tmp_path: Path, kernels_folder: Path) -> None:
    (own,) = [file for file in openmp_runtimes() if "torch" in file] or [""]
    if not own:
        pytest.skip(f"torch {torch.__version__} has no OpenMP of its own")
    second = tmp_path / "libgomp-second.so.1"
    shutil.copy(own, second)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q4_0", **WIDE)
    env = {**os.environ, "HERD_MODEL": str(model), "HERD_KERNELS_DIR": str(kernels_folder)}
    done = run_forked(["tests.worker.loading.openmp_twice", str(second)], env, tmp_path)
    assert done.returncode == 0, done.output
    said = json.loads(done.output.splitlines()[-1])
    (runtimes, ids), (later_runtimes, later_ids), num_threads, kernels = said
    assert own in runtimes
    assert later_runtimes == sorted([*runtimes, str(second)])
    assert num_threads == NUM_THREADS
    assert "attention" in kernels
    assert later_ids == ids
