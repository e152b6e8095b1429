"""Form: how a model's matrices lie in memory."""

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Self

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.native import NO_KERNELS, Kernels
from llama_herd.model.kernels.tiles import TILE_ROWS


class Kept(Enum):
    """Which matrices stay in the blocks of their file; all others become numbers of the compute dtype."""

    NOTHING = "nothing"
    MULTIPLIED = "multiplied"  # those that a kernel multiplies as they are
    SMALLER = "smaller"  # those that take fewer bytes so


@dataclass(frozen=True)
class Form:
    """Which matrices stay in blocks, and the kernels that multiply some of these."""

    kept: Kept
    kernels: Kernels = NO_KERNELS

    DENSE: ClassVar["Form"]
    FASTEST: ClassVar["Form"]
    QUANTIZED: ClassVar["Form"]

    def with_kernels(self, kernels: Kernels) -> Self:
        return replace(self, kernels=kernels)

    def keeps_blocks(self, type: GGMLType, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether a matrix of this type stays in its blocks."""
        block_values, block_bytes = GGML_QUANT_SIZES[type]
        if self.kept is Kept.NOTHING or block_bytes >= block_values * dtype.itemsize:
            return False
        return self.kept is Kept.SMALLER or self.is_native(type, device)

    def is_native(self, type: GGMLType, device: torch.device) -> bool:
        """Whether blocks of this type are laid out for a kernel."""
        return device.type == "cpu" and type in self.kernels.types

    def num_bytes(
        self, type: GGMLType, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> int:
        """What a weight takes in memory, at most; a vector is float32 whatever the compute dtype."""
        num_values = math.prod(shape)
        if len(shape) == 1:
            return num_values * torch.float32.itemsize
        if not self.keeps_blocks(type, device, dtype):
            return num_values * dtype.itemsize
        if self.is_native(type, device):  # in whole tiles
            num_values = -(-shape[0] // TILE_ROWS) * TILE_ROWS * shape[1]
        block_values, block_bytes = GGML_QUANT_SIZES[type]
        return int(num_values // block_values * block_bytes)


Form.DENSE, Form.FASTEST, Form.QUANTIZED = Form(Kept.NOTHING), Form(Kept.MULTIPLIED), Form(Kept.SMALLER)
