"""Products with quantised weights on a card: few tokens by a fused kernel, more by torch out of a scratch.

Shapes: T tokens, N rows (outputs), C columns (inputs).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.gpu.block_parts import BlockParts
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.gpu.product_kernels import add_parts, dequantise, multiply, multiply_one

#: Up to so many tokens a product is fused. With more it is bound by arithmetic, which torch's matmul does
#: best; and so it is in float32, which tensor cores do not multiply.
FEW_TOKENS, FUSED_DTYPES = 64, (torch.float16, torch.bfloat16)
#: What is dequantised at once: most matrices of a 7B model whole, and no more than the memory plan counts.
SCRATCH_BYTES = 1 << 27
#: Columns of a tile.
TILE_COLUMNS = 256


class Form(NamedTuple):
    """Values that share a byte, neighbours that stay so (0: all), and neighbours that share a scale."""

    planes: int
    run: int
    group: int


FORMS = {
    GGMLType.Q8_0: Form(2, 0, 32),
    GGMLType.Q4_0: Form(2, 16, 16),
    GGMLType.Q4_K: Form(2, 32, 32),
    GGMLType.Q6_K: Form(4, 32, 16),
}


@dataclass(frozen=True)
class Tile:
    """A tile: the part that one program of the fused kernel computes, for up to so many tokens."""

    num_tokens: int
    num_rows: int
    num_warps: int
    num_stages: int
    num_programs: int  # that keep a large card busy


#: The tile of a single token, which is multiplied without tensor cores.
ONE_ROWS, ONE_COLUMNS, ONE_WARPS = 4, 2_048, 2
#: The fewest tiles along a row that are worth a program.
MIN_PART_TILES = 2
#: Sums of one program of the kernel that adds parts.
_ADDED = 1_024
#: The first one that all tokens go into is taken. On a Hopper four warps multiply 64 rows at once, and do
#: best with twice as many; elsewhere registers are too few for that.
TILES = (Tile(16, 32, 2, 3, 528), Tile(32, 64, 4, 2, 264), Tile(64, 64, 4, 2, 264))
HOPPER_TILES = (*TILES[:2], Tile(64, 128, 4, 2, 264))
#: Of the kernel that dequantises.
_VALUES_ROWS, _VALUES_WARPS = 16, 4


def product(x: Tensor, parts: BlockParts) -> Tensor:
    """x (T, C) times the matrix: (T, N) of its type."""
    if x.shape[1] != parts.columns:
        raise ValueError(f"no kernel for x of {tuple(x.shape)} and {parts.columns} columns")
    y = x.new_empty(len(x), parts.num_rows)
    if len(x) <= FEW_TOKENS and x.dtype in FUSED_DTYPES:
        for launch in multiplied(x.contiguous(), parts, y, _tiles_of(x.device)):
            launch()
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


def multiplied(x: Tensor, parts: BlockParts, y: Tensor, tiles: Sequence[Tile] = TILES) -> Iterator[Launch]:
    """The kernels that write y (T, N) from few tokens x (T, C), both contiguous."""
    if len(x) > 1:
        yield from _multiplied_few(x, parts, y, next(tile for tile in tiles if len(x) <= tile.num_tokens))
    elif len(x):
        yield _multiplied_one(x, parts, y)


def _multiplied_few(x: Tensor, parts: BlockParts, y: Tensor, tile: Tile) -> Iterator[Launch]:
    """By tensor cores. Where rows are too few for a card, it also shares out columns, and adds up then."""
    constants = _constants(parts, TILE_COLUMNS)
    num_programs, tile_blocks = -(-parts.num_rows // tile.num_rows), int(constants["BLOCKS"])
    num_tiles = -(-parts.num_blocks // tile_blocks)
    part_tiles = max(MIN_PART_TILES, -(-num_tiles * num_programs // tile.num_programs))
    num_parts, part_blocks = -(-num_tiles // part_tiles), part_tiles * tile_blocks
    sums = y if num_parts == 1 else y.new_empty(num_parts, *y.shape, dtype=torch.float32)
    yield Launch(
        multiply,
        (num_programs, num_parts),
        {
            "x": x,
            "y": sums,
            **_pointers(parts),
            "num_tokens": len(x),
            "part_blocks": part_blocks,
        },
        {**constants, "ROWS": tile.num_rows, "TOKENS": tile.num_tokens, "BIAS": _bias(x)},
        tile.num_warps,
        tile.num_stages,
    )
    if num_parts > 1:
        yield Launch(
            add_parts,
            (-(-y.numel() // _ADDED),),
            {"parts": sums, "y": y, "num_parts": num_parts, "num_numbers": y.numel()},
            {"NUMBERS": _ADDED},
            num_warps=4,
            num_stages=1,
        )


def _multiplied_one(x: Tensor, parts: BlockParts, y: Tensor) -> Launch:
    """Without tensor cores, which have nothing to do for one token."""
    return Launch(
        multiply_one,
        (-(-parts.num_rows // ONE_ROWS),),
        {"x": x, "y": y, **_pointers(parts)},
        {**_constants(parts, ONE_COLUMNS), "ROWS": ONE_ROWS, "BIAS": _bias(x)},
        ONE_WARPS,
        num_stages=3,
    )


def dequantised(parts: BlockParts, y: Tensor) -> Launch:
    """The kernel that writes the matrix y (N, C)."""
    constants = _constants(parts, TILE_COLUMNS)
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


@cache
def _tiles_of(device: torch.device) -> Sequence[Tile]:
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
    return HOPPER_TILES if is_hopper else TILES


def _pointers(parts: BlockParts) -> dict[str, Tensor | int]:
    """The pointers that a kernel reads of a matrix; one for a part that its type lacks is never read."""
    unused = parts.parts["values"]
    named = {name: parts.parts.get(name, unused) for name in ("values", "high", "scales", "halves")}
    return {**named, "num_rows": parts.num_rows, "num_blocks": parts.num_blocks}


def _constants(parts: BlockParts, tile_columns: int) -> Mapping[str, Any]:
    form = FORMS[parts.type]
    block_values = int(GGML_QUANT_SIZES[parts.type][0])
    num_blocks = tile_columns // block_values
    return {
        "TYPE": parts.type.name,
        "BLOCK_VALUES": block_values,
        "PLANES": form.planes,
        "RUN": form.run or tile_columns // form.planes,
        "GROUP": form.group,
        "BLOCKS": num_blocks,
        "IS_EVEN": parts.num_blocks % num_blocks == 0,
    }


def _bias(x: Tensor) -> int:
    """What kernels add to numbers where they take four at once by PTX, which no interpreter knows."""
    return 128 if x.device.type != "cpu" and torch.version.hip is None else 0
