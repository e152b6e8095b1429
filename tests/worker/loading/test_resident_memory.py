"""Weights take hardly more than planned, in blocks no more than their file, also while they are loaded."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_config
from benchmarks.speed.files import PRESETS
from llama_herd.ops.settings import BUNDLED_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.worker]

#: A quarter of a GB in four to five bits: what Python and torch take more or less is nothing beside it.
SHAPE = random_config(
    hidden_size=2_048, num_layers=8, num_heads=16, num_kv_heads=4, ffn_size=5_632, vocab_size=8_000
)


MIXES: dict[str, GGMLType | Callable[[str], GGMLType]] = {
    "Q4_K_M": PRESETS["Q4_K_M"],
    "IQ3_S": GGMLType.IQ3_S,
    "BF16": GGMLType.BF16,
}


@dataclass(frozen=True)
class Loaded:
    """Bytes of a process that has loaded a model."""

    resident: int
    peak: int  # until then
    cache: int
    weights: int  # as planned

    @classmethod
    def of(cls, model: Path, kernels: str, **settings: str) -> Self:
        given = {"MODEL": str(model), "KERNELS_DIR": kernels, "KV_CACHE_TOKENS": "1024", **settings}
        done = subprocess.run(
            [sys.executable, "-m", "tests.worker.loading.loaded_bytes"],
            env={**os.environ, **{f"HERD_{name}": value for name, value in given.items()}},
            stdout=subprocess.PIPE,
            check=True,
        )
        return cls(**json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(params=["Q4_K_M", "IQ3_S"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_random_model(tmp_path / "m.gguf", SHAPE, MIXES[request.param], torch.device("cpu"))


@pytest.mark.parametrize("has_kernels", [True, False])
def test_blocks_take_what_their_file_does(path: Path, kernels_folder: Path, has_kernels: bool) -> None:
    kernels = str(kernels_folder) if has_kernels else "/nowhere"
    without, loaded = (Loaded.of(model, kernels, WEIGHTS="quantized") for model in (BUNDLED_MODEL, path))
    file_bytes = path.stat().st_size
    allowed = without.resident + 1.1 * file_bytes + loaded.cache
    assert loaded.resident <= allowed
    assert loaded.peak <= allowed + 0.25 * file_bytes
    assert loaded.resident > file_bytes


@pytest.mark.parametrize(
    ("path", "weights", "dtype"),
    [
        ("Q4_K_M", "auto", "bfloat16"),
        ("Q4_K_M", "dense", "bfloat16"),
        ("Q4_K_M", "dense", "float32"),
        ("IQ3_S", "auto", "bfloat16"),
        ("BF16", "dense", "bfloat16"),
        ("BF16", "dense", "float32"),
    ],
    indirect=["path"],
)
def test_every_form_takes_what_is_planned(path: Path, kernels_folder: Path, weights: str, dtype: str) -> None:
    without, loaded = (
        Loaded.of(model, str(kernels_folder), WEIGHTS=weights, DTYPE=dtype) for model in (BUNDLED_MODEL, path)
    )
    allowed = without.resident + 1.1 * loaded.weights + loaded.cache
    assert loaded.resident <= allowed
    assert loaded.peak <= allowed + 0.25 * path.stat().st_size
    assert loaded.resident > loaded.weights
