"""The files that are measured: random weights, types mixed as in llama.cpp's presets."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGMLQuantizationType as GGMLType, GGUFWriter, LlamaFileType

from benchmarks.floors import Format
from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_config
from benchmarks.vocabularies import add_byte_pairs
from llama_herd.model.config import LlamaConfig


def q4_k_m(name: str) -> GGMLType:
    """Half of the layers have a finer value and down projection, and so has the output."""
    is_finer = name.split(".")[-2] in ("attn_v", "ffn_down") and int(name.split(".")[1]) % 2 == 0
    return GGMLType.Q6_K if is_finer or name == "output.weight" else GGMLType.Q4_K


def q4_0(name: str) -> GGMLType:
    return GGMLType.Q6_K if name == "output.weight" else GGMLType.Q4_0


PRESETS: dict[str, GGMLType | Callable[[str], GGMLType]] = {
    "Q4_0": q4_0,
    "Q8_0": GGMLType.Q8_0,
    "Q4_K_M": q4_k_m,
    "BF16": GGMLType.BF16,
}


@dataclass(frozen=True)
class RandomFile:
    """A file of random weights."""

    shape: str
    config: LlamaConfig
    preset: str

    @property
    def format(self) -> Format:
        return Format[self.preset]

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.preset}.gguf"
        cpu = torch.device("cpu")
        write_random_model(path, self.config, PRESETS[self.preset], cpu, self._add_vocabulary)
        with path.open("rb") as file:
            os.fsync(file.fileno())  # else it is still being written while engines take turns
        return path

    def _add_vocabulary(self, writer: GGUFWriter, vocab_size: int) -> None:
        """What OpenVINO can read, which also asks for the preset."""
        writer.add_file_type(LlamaFileType[f"MOSTLY_{self.preset}"])
        add_byte_pairs(writer, vocab_size)


SMALL = random_config(hidden_size=256, num_layers=6, num_heads=4, ffn_size=768)
#: TinyLlama's.
MEDIUM = random_config(hidden_size=2_048, num_layers=22, num_heads=32, num_kv_heads=4, ffn_size=5_632)
#: Llama-2-7B's, but for the number of layers.
LARGE = random_config(hidden_size=4_096, num_layers=4, num_heads=32, ffn_size=11_008)

FILES = (
    *(RandomFile("1.1B", MEDIUM, preset) for preset in PRESETS),
    RandomFile("7B x 4 layers", LARGE, "Q4_0"),
    RandomFile("20M", SMALL, "Q8_0"),
)
QUICK_FILES = (RandomFile("1.1B", MEDIUM, "Q4_0"),)
