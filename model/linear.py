"""Linear: a matrix of a model as ordered segments of rows. The one seam for quantised weights.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.weight import Weight

#: Rows that are dequantised at once while loading: bounds the memory that it takes on top of the weights.
SLAB_ROWS = 1024


class Segment(Protocol):
    """Rows of one matrix in one layout, prepared for their device."""

    def __call__(self, x: Tensor) -> Tensor:
        """(T, C) to (T, rows)."""


@dataclass(frozen=True, eq=False)
class DenseSegment:
    """Rows as plain numbers of the compute dtype."""

    matrix: Tensor  # (rows, C)
    row_tile: int = 0  # tokens that are multiplied at a time; 0: all

    def __call__(self, x: Tensor) -> Tensor:
        if not self.row_tile:
            return linear(x, self.matrix)
        T, _ = x.shape
        padded = pad(x, (0, 0, 0, -T % self.row_tile))  # whole tiles
        return torch.cat([linear(tile, self.matrix) for tile in torch.split(padded, self.row_tile)])[:T]


@dataclass(frozen=True, eq=False)
class Linear:
    """x @ W.T + bias, where W is the segments' rows one below the other.

    Projections of the same input are one Linear, so that QKV is one matmul, and gate and up another.
    """

    segments: tuple[Segment, ...]
    bias: Tensor | None = None  # (N,)

    @classmethod
    def load(
        cls, weights: Sequence[Weight], device: torch.device, dtype: torch.dtype, row_tile: int = 0
    ) -> Self:
        """Lay out weights of equal width for a device; neighbours of equal layout become one segment."""
        return cls((DenseSegment(dense(weights, device, dtype), row_tile),))

    def __call__(self, x: Tensor) -> Tensor:
        parts = [segment(x) for segment in self.segments]  # (T, rows) each
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (T, N)
        return y if self.bias is None else y + self.bias


def dense(weights: Sequence[Weight], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights' rows one below the other, as numbers of the compute dtype (N, C)."""
    num_rows = sum(len(weight.blocks) for weight in weights)
    matrix = torch.empty(num_rows, weights[0].shape[-1], device=device, dtype=dtype)
    row = 0
    for slab in _slabs(weights, device):
        matrix[row : row + len(slab)] = slab
        row += len(slab)
    return matrix


def _slabs(weights: Sequence[Weight], device: torch.device) -> Iterator[Tensor]:
    """Blocks travel to the device as they are stored, in fewer bytes than their values have."""
    for weight in weights:
        for row in range(0, len(weight.blocks), SLAB_ROWS):
            yield dequantize(weight.blocks[row : row + SLAB_ROWS].to(device), weight.type)
