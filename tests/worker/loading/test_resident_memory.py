"""Weights that stay in their blocks take hardly more than their file, also while they are loaded."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_config
from benchmarks.speed.files import q4_k_m
from llama_herd.worker.settings import BUNDLED_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.worker]

#: A quarter of a GB in four to five bits: what Python and torch take more or less is nothing beside it.
SHAPE = random_config(
    hidden_size=2_048, num_layers=8, num_heads=16, num_kv_heads=4, ffn_size=5_632, vocab_size=8_000
)


def loaded_bytes(model: Path, kernels: str) -> tuple[int, int, int]:
    """What a process holds with the model loaded, what it held at most, and the size of the cache."""
    settings = {
        "MODEL": str(model),
        "WEIGHTS": "quantized",
        "KERNELS_DIR": kernels,
        "KV_CACHE_TOKENS": "1024",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.loading.loaded_bytes"],
        env={**os.environ, **{f"HERD_{name}": value for name, value in settings.items()}},
        stdout=subprocess.PIPE,
        check=True,
    )
    resident, peak, cache = json.loads(done.stdout.splitlines()[-1])
    return resident, peak, cache


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("type", [q4_k_m, GGMLType.Q5_K], ids=["Q4_K_M", "Q5_K"])
def test_blocks_take_what_their_file_does(
    tmp_path: Path,
    kernels_folder: Path,
    type: GGMLType | Callable[[str], GGMLType],
    has_kernels: bool,
) -> None:
    kernels = str(kernels_folder) if has_kernels else "/nowhere"
    path = write_random_model(tmp_path / "m.gguf", SHAPE, type, torch.device("cpu"))
    file_bytes, (without, _, _) = path.stat().st_size, loaded_bytes(BUNDLED_MODEL, kernels)
    resident, peak, cache = loaded_bytes(path, kernels)
    allowed = without + 1.1 * file_bytes + cache
    assert resident <= allowed
    assert peak <= allowed + 0.25 * file_bytes
    assert resident > file_bytes
