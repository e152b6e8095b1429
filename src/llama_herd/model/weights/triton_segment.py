"""TritonSegment: rows of a model's matrix that a Triton kernel multiplies out of their blocks, on a card.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from llama_herd.model.kernels.gpu.block_parts import BlockParts
from llama_herd.model.weights.segment import slabs
from llama_herd.model.weights.weight import Weight

if TYPE_CHECKING:
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels


@dataclass(frozen=True, eq=False)
class TritonSegment:
    """Rows in parts of blocks: the bytes of their file in another order, and no second copy."""

    kernels: TritonKernels
    parts: BlockParts
    dtype: torch.dtype

    @classmethod
    def load(
        cls, weights: Sequence[Weight], kernels: TritonKernels, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Lay out weights of one type and width, their rows one below the other."""
        num_rows = sum(weight.shape[0] for weight in weights)
        parts = BlockParts.empty(weights[0].type, num_rows, weights[0].shape[-1], device)
        row = 0
        for weight in weights:
            for slab in slabs(weight, device):
                parts.write(row, slab)
                row += len(slab)
        return cls(kernels, parts, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.multiply(x, self.parts)

    def rows(self, ids: Tensor) -> Tensor:
        return self.kernels.values(self.parts.rows(ids), self.dtype)
