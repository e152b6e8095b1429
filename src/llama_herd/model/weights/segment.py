"""Segments: rows of a model's matrix in one layout, prepared for their device.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs), S rows of a slab.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor
from torch.nn.functional import linear, pad

from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.huge_pages import zero_bytes
from llama_herd.model.kernels.instruction_set import multiplies_bfloat16
from llama_herd.model.sizes import SLAB_VALUES
from llama_herd.model.weights.weight import Weight


class Segment(Protocol):
    """Rows of one matrix in one layout."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply inputs (T, C) by the rows: (T, N)."""

    def rows(self, ids: Tensor) -> Tensor:
        """The rows with these ids (T,), in the compute dtype: (T, C)."""


@dataclass(frozen=True, eq=False)
class DenseSegment:
    """Rows as plain numbers of the compute dtype."""

    matrix: Tensor  # (N, C)
    row_tile: int = 0  # tokens to multiply at a time; 0: all

    def __call__(self, x: Tensor) -> Tensor:
        return _multiply(x, self.matrix, self.row_tile)

    def rows(self, ids: Tensor) -> Tensor:
        return self.matrix[ids]


@dataclass(frozen=True, eq=False)
class BlockSegment:
    """Rows in the blocks of their file, dequantised slab by slab whenever they are multiplied."""

    type: GGMLType
    blocks: Tensor  # uint8 (N, bytes of a row)
    columns: int
    dtype: torch.dtype
    row_tile: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        y = x.new_empty(len(x), len(self.blocks))  # (T, N)
        x = x.to(_product_dtype(x))
        row = 0
        for slab in torch.split(self.blocks, rows_per_slab(self.columns, x.device)):
            matrix = dequantize(slab, self.type).to(x.dtype)  # (S, C)
            y[:, row : row + len(slab)] = _multiply(x, matrix, self.row_tile)
            row += len(slab)
        return y

    def rows(self, ids: Tensor) -> Tensor:
        return dequantize(self.blocks[ids], self.type).to(self.dtype)


def dense_matrix(weights: Sequence[Weight], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights' rows one below the other, as numbers of the compute dtype (N, C)."""
    matrix = _empty_matrix(sum(len(weight.rows) for weight in weights), weights[0].shape[-1], device, dtype)
    row = 0
    for weight in weights:
        for slab in slabs(weight, device):
            matrix[row : row + len(slab)] = dequantize(slab, weight.type)
            row += len(slab)
    return matrix


def _empty_matrix(num_rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A matrix to be filled; on a CPU in memory that can be moved into huge pages."""
    if device.type != "cpu":
        return torch.empty(num_rows, columns, device=device, dtype=dtype)
    return zero_bytes(num_rows * columns * dtype.itemsize).view(dtype).view(num_rows, columns)


def joined_blocks(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """The blocks of weights of one type, their rows one below the other: uint8 (N, bytes of a row)."""
    if len(weights) == 1 and device.type == "cpu":
        return weights[0].blocks
    block_values, block_bytes = GGML_QUANT_SIZES[weights[0].type]
    num_rows, row_bytes = (
        sum(len(w.rows) for w in weights),
        weights[0].shape[-1] // block_values * block_bytes,
    )
    rows = torch.empty(num_rows, row_bytes, device=device, dtype=torch.uint8)
    row = 0
    for weight in weights:
        for slab in slabs(weight, device):
            rows[row : row + len(slab)] = slab
            row += len(slab)
    return rows


def rows_per_slab(columns: int, device: torch.device) -> int:
    """How many rows are dequantised at once."""
    return max(1, SLAB_VALUES[device.type] // columns)


def slabs(weight: Weight, device: torch.device, num_rows: int = 0) -> Iterator[Tensor]:
    """The rows of a weight, `num_rows` at once; 0: as many as are dequantised at once.

    Blocks go to the device as they are stored, since they are smaller than their values.
    """
    num_rows = num_rows or rows_per_slab(weight.shape[-1], device)
    for row in range(0, len(weight.rows), num_rows):
        yield weight.rows[row : row + num_rows].to(device)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The type to multiply inputs in: float32 for bfloat16 on a CPU that has no instructions for it."""
    is_slow = x.device.type == "cpu" and x.dtype is torch.bfloat16 and not multiplies_bfloat16()
    return torch.float32 if is_slow else x.dtype


def _multiply(x: Tensor, matrix: Tensor, row_tile: int) -> Tensor:
    """x @ matrix.T, `row_tile` rows of x at a time."""
    if not row_tile:
        return linear(x, matrix)
    padded = pad(x, (0, 0, 0, -len(x) % row_tile))  # whole tiles
    return torch.cat([linear(tile, matrix) for tile in torch.split(padded, row_tile)])[: len(x)]
