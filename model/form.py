"""Form: how a model's matrices lie in memory."""

import math
from enum import Enum

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.native import MULTIPLIED_TYPES


class Form(Enum):
    """Which matrices stay in the blocks of their file, and which become numbers of the compute dtype."""

    DENSE = "dense"  # all become numbers
    FASTEST = "fastest"  # those stay that a kernel multiplies as they are
    QUANTIZED = "quantized"  # those stay that take fewer bytes so

    def keeps_blocks(self, type: GGMLType, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether a matrix of this type stays in its blocks."""
        block_values, block_bytes = GGML_QUANT_SIZES[type]
        if self is Form.DENSE or block_bytes >= block_values * dtype.itemsize:
            return False
        return self is Form.QUANTIZED or type in MULTIPLIED_TYPES[device.type]

    def num_bytes(
        self, type: GGMLType, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> int:
        """What a weight takes in memory; a vector is float32 whatever the compute dtype."""
        num_values = math.prod(shape)
        if len(shape) == 1:
            return num_values * torch.float32.itemsize
        if self.keeps_blocks(type, device, dtype):
            block_values, block_bytes = GGML_QUANT_SIZES[type]
            return int(num_values // block_values * block_bytes)
        return num_values * dtype.itemsize
