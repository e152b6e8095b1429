"""Linear: a matrix of a model as ordered segments of rows, each in one layout, prepared for their device.

The one seam for quantised weights.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs), S rows of a slab, R rows of tiles,
K tiles of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, Self

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor
from torch.nn.functional import linear, pad

from llama_herd.model.kernels.block_types import NUMBERS, TILE_ROWS
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.gpu.block_parts import BlockParts
from llama_herd.model.kernels.huge_pages import zero_bytes
from llama_herd.model.kernels.instruction_set import multiplies_bfloat16
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.tiles import empty_tiles
from llama_herd.model.kernels.unloaded import UnloadedKernels
from llama_herd.model.sizes import SLAB_VALUES
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.weight import Weight

if TYPE_CHECKING:
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels

#: Rows that are laid out in tiles at once, in bytes. More would not fit into the CPU's cache, fewer cost more
#: calls.
LAID_OUT_BYTES = 1 << 20


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


@dataclass(frozen=True, eq=False)
class NativeSegment:
    """Rows in tiles for native kernels: the blocks of their file in another order, and no second copy."""

    kernels: Kernels
    type: GGMLType
    tiles: Tensor  # uint8 (R, K, bytes of a tile)
    num_rows: int
    dtype: torch.dtype

    @classmethod
    def load(
        cls, weights: Sequence[Weight], kernels: Kernels, dtype: torch.dtype, type: GGMLType | None = None
    ) -> Self:
        """Lay out weights of one width, their rows one below the other.

        They are of one type, or become numbers if `type` says so.
        """
        type, num_rows = type or weights[0].type, sum(weight.shape[0] for weight in weights)
        tiles = empty_tiles(num_rows, weights[0].shape[-1], type)
        left = torch.empty(0, tiles[0].nbytes // TILE_ROWS, dtype=torch.uint8)  # rows that fill no tile yet
        done, slab_tiles = 0, max(1, LAID_OUT_BYTES // left.shape[1] // TILE_ROWS)
        for _, slab, own_type in slabs(weights, tiles.device, slab_tiles * TILE_ROWS):
            blocks = slab if own_type is type else dequantize(slab, own_type).bfloat16().view(torch.uint8)
            rows = torch.cat((left, blocks)) if len(left) else blocks
            whole = len(rows) // TILE_ROWS
            if whole:
                kernels.lay_out(rows[: whole * TILE_ROWS], tiles[done : done + whole], type)
            done, left = done + whole, rows[whole * TILE_ROWS :]
        if len(left):
            kernels.lay_out(pad(left, (0, 0, 0, TILE_ROWS - len(left))), tiles[done:], type)
        return cls(kernels, type, tiles, num_rows, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.multiply(x, self.tiles, self.type, self.num_rows)

    def in_float32(self, x: Tensor) -> Tensor:
        """(T, C) to (T, N) in float32, whatever the compute dtype."""
        return self.kernels.multiply(x, self.tiles, self.type, self.num_rows, dtype=torch.float32)

    def rows(self, ids: Tensor) -> Tensor:
        return self.kernels.look_up(self.tiles, ids, self.type, self.dtype)


@dataclass(frozen=True, eq=False)
class TritonSegment:
    """Rows in parts of blocks for Triton kernels: their file's bytes in another order, and no second copy."""

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
        for row, slab, _ in slabs(weights, device):
            parts.write(row, slab)
        return cls(kernels, parts, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.multiply(x, self.parts)

    def rows(self, ids: Tensor) -> Tensor:
        return self.kernels.values(self.parts.rows(ids), self.dtype)


@dataclass(frozen=True, eq=False)
class Linear:
    """x @ W.T + bias, where W is the segments' rows one below the other.

    Projections of the same input are one Linear, so that QKV is one matmul, and gate and up another.
    """

    segments: tuple[Segment, ...]
    bias: Tensor | None = None  # (N,)

    @classmethod
    def load(
        cls,
        weights: Sequence[Weight],
        device: torch.device,
        dtype: torch.dtype,
        row_tile: int = 0,
        form: WeightForm = WeightForm.DENSE,
        *,
        is_multiplied: bool = True,
    ) -> Self:
        """Lay out weights of equal width for a device; neighbours of equal layout become one segment.

        What is not multiplied has only its rows looked up, which is faster where they lie as they are.
        """

        def kept_type(weight: Weight) -> GGMLType | None:
            """The type in whose blocks a weight stays."""
            return weight.type if form.keeps_blocks(weight.type, device.type, dtype.itemsize) else None

        def segment(kept: GGMLType | None, group: Sequence[Weight]) -> Segment:
            if kept is None:
                is_tiled = form.tiles_numbers(group[0].shape[-1], device.type, dtype.itemsize)
                if is_tiled and is_multiplied and isinstance(form.kernels, Kernels):
                    return NativeSegment.load(group, form.kernels, dtype, NUMBERS)
                return DenseSegment(dense_matrix(group, device, dtype), row_tile)
            if form.is_native(kept, device.type):
                if isinstance(form.kernels, Kernels):
                    return NativeSegment.load(group, form.kernels, dtype)
                assert not isinstance(form.kernels, UnloadedKernels), "kernels must be loaded to compute"
                return TritonSegment.load(group, form.kernels, device, dtype)
            return BlockSegment(kept, joined_blocks(group, device), group[0].shape[-1], dtype, row_tile)

        return cls(tuple(segment(kept, list(group)) for kept, group in groupby(weights, kept_type)))

    @property
    def is_native(self) -> bool:
        """Whether a native kernel multiplies all of it."""
        return all(isinstance(segment, NativeSegment) for segment in self.segments)

    def __call__(self, x: Tensor) -> Tensor:
        parts = [segment(x) for segment in self.segments]  # (T, rows) each
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (T, N)
        return y if self.bias is None else y.add_(self.bias)  # whose memory is its own

    def in_float32(self, x: Tensor) -> Tensor:
        """The same in float32: without a rounding before that, where native kernels multiply all."""
        if self.bias is not None or not self.is_native:
            return self(x).float()
        parts = [one.in_float32(x) for one in self.segments if isinstance(one, NativeSegment)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (T, N)


def dense_matrix(weights: Sequence[Weight], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights' rows one below the other, as numbers of the compute dtype (N, C)."""
    shape = sum(len(weight.rows) for weight in weights), weights[0].shape[-1]
    if device.type == "cpu":  # in memory that can be moved into huge pages
        matrix = zero_bytes(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    else:
        matrix = torch.empty(shape, device=device, dtype=dtype)
    for row, slab, type in slabs(weights, device):
        matrix[row : row + len(slab)] = dequantize(slab, type)
    return matrix


def joined_blocks(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """The blocks of weights of one type, their rows one below the other: uint8 (N, bytes of a row)."""
    if len(weights) == 1 and device.type == "cpu":
        return weights[0].blocks
    block_values, block_bytes = GGML_QUANT_SIZES[weights[0].type]
    num_rows, columns = sum(len(weight.rows) for weight in weights), weights[0].shape[-1]
    rows = torch.empty(num_rows, columns // block_values * block_bytes, device=device, dtype=torch.uint8)
    for row, slab, _ in slabs(weights, device):
        rows[row : row + len(slab)] = slab
    return rows


def rows_per_slab(columns: int, device: torch.device) -> int:
    """How many rows are dequantised at once."""
    return max(1, SLAB_VALUES[device.type] // columns)


def slabs(
    weights: Sequence[Weight], device: torch.device, num_rows: int = 0
) -> Iterator[tuple[int, Tensor, GGMLType]]:
    """The rows of weights one below the other, `num_rows` at once, each with the first's number and the type.

    0: as many as are dequantised at once. Blocks go to the device as they are stored, since they are smaller
    than their values.
    """
    num_before = 0
    for weight in weights:
        at_once = num_rows or rows_per_slab(weight.shape[-1], device)
        for row in range(0, len(weight.rows), at_once):
            yield num_before + row, weight.rows[row : row + at_once].to(device), weight.type
        num_before += len(weight.rows)


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
