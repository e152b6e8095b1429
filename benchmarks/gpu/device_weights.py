"""Random weights that are made on the device, for a model whose file is a header and a hole.

A model of 13 GB is there in a second or two, without a byte read. All else is as with any file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from benchmarks.gpu.random_model import BLOCKS, random_values, stored_type, write_header
from benchmarks.random_blocks import random_blocks
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.weights.weight import Weight


@dataclass(frozen=True)
class RandomRows:
    """The rows of a weight, drawn whenever they are asked for."""

    type: GGMLType
    shape: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    def __getitem__(self, rows: slice, /) -> Tensor:
        num_rows = len(range(*rows.indices(len(self))))
        if len(self.shape) == 1:
            return BLOCKS[self.type](random_values(self.shape, 0, self.device)).view(1, -1)
        if self.type in BLOCKS:
            return BLOCKS[self.type](random_values((num_rows, self.shape[1]), rows.start or 0, self.device))
        return random_blocks(self.type, num_rows, self.shape[1], rows.start or 0, self.device)


def write_hollow_model(path: Path, config: LlamaConfig, type: GGMLType | Callable[[str], GGMLType]) -> Path:
    """A model file of this shape whose weights are a hole: it takes no room on the disk."""
    type_of = type if callable(type) else lambda name: type
    unfinished = path.with_suffix(".unfinished")
    writer, shapes = write_header(unfinished, config, type_of)
    num_bytes = sum(
        -(-_num_bytes(shape, stored_type(shape, type_of(name))) // writer.data_alignment)
        * writer.data_alignment
        for name, shape in shapes.items()
    )
    writer.close()
    with unfinished.open("r+b") as file:
        file.truncate(-(-file.seek(0, 2) // writer.data_alignment) * writer.data_alignment + num_bytes)
    return unfinished.rename(path)


def draw_weights_on(device: torch.device) -> None:
    """From now on weights of GGUF files are drawn, in this process."""

    def drawn(model: GGUFModel, name: str) -> Weight:
        info = model._weights[model._stored_name(name)].info
        return Weight(info.type, info.shape, RandomRows(info.type, info.shape, device))

    setattr(GGUFModel, "weight", drawn)  # noqa: B010


def _num_bytes(shape: tuple[int, ...], type: GGMLType) -> int:
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    return int(math.prod(shape) // block_values * block_bytes)
