"""The files that are measured: 1.1 B random weights each."""

from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.speed.files import MEDIUM, PRESETS
from llama_herd.model.config import LlamaConfig


def q5_k_m(name: str) -> GGMLType:
    """As Q4_K_M is mixed."""
    is_finer = name == "output.weight" or name.split(".")[-2] in ("attn_v", "ffn_down")
    return GGMLType.Q6_K if is_finer else GGMLType.Q5_K


MIXES: dict[str, GGMLType | Callable[[str], GGMLType]] = {**PRESETS, "Q5_K_M": q5_k_m}


def random_file(folder: Path, mix: str, config: LlamaConfig = MEDIUM) -> Path:
    """The file of a mix in `folder`; written if it is not there."""
    path = folder / f"{mix}.gguf"
    if path.exists():
        return path
    return write_random_model(path, config, MIXES[mix], torch.device("cpu"))
