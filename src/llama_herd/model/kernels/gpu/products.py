"""Products with quantised weights on a card: few tokens by a fused kernel, more by torch out of a scratch.

Shapes: T tokens, N rows (outputs), C columns (inputs).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.gpu.block_parts import BlockParts
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.gpu.product_kernels import dequantise, multiply

#: Up to so many tokens a product is fused. With more it is bound by arithmetic, which torch's matmul does
#: best; and so it is in float32, which tensor cores do not multiply.
FEW_TOKENS, FUSED_DTYPES = 64, (torch.float16, torch.bfloat16)
#: What is dequantised at once: most matrices of a 7B model whole, and no more than the memory plan counts.
SCRATCH_BYTES = 1 << 27
#: Columns of a tile.
TILE_COLUMNS = 256
#: How many values share a byte, and how many neighbours among them are neighbours in the matrix.
PLANES_AND_RUN = {
    GGMLType.Q8_0: (2, 128),
    GGMLType.Q4_0: (2, 16),
    GGMLType.Q4_K: (2, 32),
    GGMLType.Q6_K: (4, 32),
}


@dataclass(frozen=True)
class Tile:
    """A tile: the part that one program of the fused kernel computes, for up to so many tokens."""

    num_tokens: int
    num_rows: int
    num_warps: int
    num_stages: int


#: The first one that all tokens go into is taken.
TILES = (Tile(16, 32, 2, 4), Tile(32, 64, 4, 2), Tile(64, 64, 4, 2))
#: Of the kernel that dequantises.
_VALUES_ROWS, _VALUES_WARPS = 16, 4


def product(x: Tensor, parts: BlockParts) -> Tensor:
    """x (T, C) times the matrix: (T, N) of its type."""
    if x.shape[1] != parts.columns:
        raise ValueError(f"no kernel for x of {tuple(x.shape)} and {parts.columns} columns")
    y = x.new_empty(len(x), parts.num_rows)
    if len(x) <= FEW_TOKENS and x.dtype in FUSED_DTYPES:
        multiplied(x.contiguous(), parts, y)()
        return y
    num_rows = slab_rows(parts.columns, x.dtype)
    for row in range(0, parts.num_rows, num_rows):
        slab = slice(row, row + num_rows)
        torch.mm(x, values(parts.rows(slab), x.dtype).T, out=y[:, slab])  # no name keeps the scratch
    return y


def values(parts: BlockParts, dtype: torch.dtype) -> Tensor:
    """The matrix as numbers (N, C)."""
    y = torch.empty(parts.num_rows, parts.columns, dtype=dtype, device=parts.parts["values"].device)
    dequantised(parts, y)()
    return y


def multiplied(x: Tensor, parts: BlockParts, y: Tensor) -> Launch:
    """The kernel that writes y (T, N) from few tokens x (T, C), both contiguous."""
    tile = next(tile for tile in TILES if len(x) <= tile.num_tokens)
    num_programs = -(-parts.num_rows // tile.num_rows) if len(x) else 0
    return Launch(
        multiply,
        (num_programs, 1),
        {"x": x, "y": y, **_pointers(parts), "num_tokens": len(x)},
        {
            **_constants(parts),
            "ROWS": tile.num_rows,
            "TOKENS": tile.num_tokens,
        },
        tile.num_warps,
        tile.num_stages,
    )


def dequantised(parts: BlockParts, y: Tensor) -> Launch:
    """The kernel that writes the matrix y (N, C)."""
    constants = _constants(parts)
    num_tiles = -(-parts.num_blocks // int(constants["BLOCKS"]))
    return Launch(
        dequantise,
        (-(-parts.num_rows // _VALUES_ROWS), num_tiles),
        {"y": y, **_pointers(parts)},
        {**constants, "ROWS": _VALUES_ROWS},
        _VALUES_WARPS,
        num_stages=1,
    )


def slab_rows(columns: int, dtype: torch.dtype) -> int:
    """Rows that are dequantised at once: as many as there is room for, in sixteens.

    So all parts of each slab begin at a multiple of 16 bytes: for others Triton would compile another kernel.
    """
    return max(1, SCRATCH_BYTES // (columns * dtype.itemsize) // 16) * 16


def _pointers(parts: BlockParts) -> dict[str, Tensor | int]:
    """The pointers that a kernel reads of a matrix; one for a part that its type lacks is never read."""
    unused = parts.parts["values"]
    named = {name: parts.parts.get(name, unused) for name in ("values", "high", "scales", "halves")}
    return {**named, "num_rows": parts.num_rows, "num_blocks": parts.num_blocks}


def _constants(parts: BlockParts) -> Mapping[str, Any]:
    planes, run = PLANES_AND_RUN[parts.type]
    block_values = int(GGML_QUANT_SIZES[parts.type][0])
    num_blocks = TILE_COLUMNS // block_values
    return {
        "TYPE": parts.type.name,
        "BLOCK_VALUES": block_values,
        "PLANES": planes,
        "RUN": run,
        "BLOCKS": num_blocks,
        "IS_EVEN": parts.num_blocks % num_blocks == 0,
    }
