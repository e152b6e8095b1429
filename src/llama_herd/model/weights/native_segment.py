"""NativeSegment: rows of a model's matrix that a native kernel multiplies as they are stored.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs), R rows of tiles, K tiles of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor
from torch.nn.functional import pad

from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.tile_layout import TILE_ROWS
from llama_herd.model.kernels.tiles import empty_tiles
from llama_herd.model.weights.segment import slabs
from llama_herd.model.weights.weight import Weight

#: Rows that are laid out at once, in bytes. More would not fit into the CPU's cache, fewer cost more calls.
SLAB_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class NativeSegment:
    """Rows in tiles: the blocks of their file in another order, and no second copy."""

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
        done, slab_tiles = 0, max(1, SLAB_BYTES // left.shape[1] // TILE_ROWS)
        for weight in weights:
            for slab in slabs(weight, tiles.device, slab_tiles * TILE_ROWS):
                blocks = slab if weight.type is type else _as_numbers(slab, weight.type)
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

    def rows(self, ids: Tensor) -> Tensor:
        return self.kernels.look_up(self.tiles, ids, self.type, self.dtype)


def _as_numbers(blocks: Tensor, type: GGMLType) -> Tensor:
    """Rows of blocks as bytes of numbers in bfloat16."""
    return dequantize(blocks, type).bfloat16().view(torch.uint8)
