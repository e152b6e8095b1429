"""tiles: the blocks of a matrix in the order in which native kernels read them.

A tile is 16 rows x one block: words of 4 bytes, and numbers of 16 bits. One row of tiles follows the other.
In a tile stand word after word of all 16 rows, then their numbers of 16 bits. No byte is added but for the
rows that the last tiles lack. Of plain numbers in bfloat16 a block is 32.

Shapes: N rows, R = N / 16 rows of tiles, K tiles of a row, W words of a block, H numbers of 16 bits.
"""

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.block_types import HALVES, NUMBERS, NUMBERS_OF_BLOCK, TILE_ROWS
from llama_herd.model.kernels.huge_pages import zero_bytes


def block_size(type: GGMLType) -> tuple[int, int]:
    """The values of a block that makes a tile, and its bytes."""
    values, num_bytes = GGML_QUANT_SIZES[type]
    return (NUMBERS_OF_BLOCK, NUMBERS_OF_BLOCK * num_bytes) if type is NUMBERS else (values, num_bytes)


def empty_tiles(num_rows: int, columns: int, type: GGMLType) -> Tensor:
    """Tiles for as many rows, all zero: uint8 (R, K, bytes of a tile)."""
    block_values, block_bytes = block_size(type)
    grid = -(-num_rows // TILE_ROWS), columns // block_values
    return zero_bytes(grid[0] * grid[1] * TILE_ROWS * block_bytes).view(*grid, TILE_ROWS * block_bytes)


def random_tiles(num_rows: int, columns: int, type: GGMLType) -> Tensor:
    """Tiles of random bytes, but that their scales are 2**-7 to 2**-6 in size."""
    tiles = empty_tiles(num_rows, columns, type).random_(0, 256)
    if type is NUMBERS:
        high = tiles[..., 1::2]
        high.copy_(high & 0x80 | 0x3C)
        return tiles
    scales = _parts(tiles, type)[1]
    if scales.dtype is torch.uint8:  # exponents
        scales.copy_(scales & 1 | 120)
        return tiles
    high = scales.view(torch.uint8)[..., 1::2]
    high.copy_(high & 0x83 | 0x20)
    return tiles


def blocks_of(tiles: Tensor, ids: Tensor, type: GGMLType) -> Tensor:
    """The blocks of single rows as their file has them: uint8 (ids, bytes of a row)."""
    row, lane = ids // TILE_ROWS, ids % TILE_ROWS
    words, halves = (part[row, :, :, lane].view(torch.uint8) for part in _parts(tiles, type))
    start = HALVES[type].start
    return torch.cat((words[..., :start], halves, words[..., start:]), dim=-1).flatten(1)


def _parts(tiles: Tensor, type: GGMLType) -> tuple[Tensor, Tensor]:
    """The words (R, K, W, 16) and the numbers of 16 bits (R, K, H, 16) of tiles, both as integers.

    Where a block has a single byte instead of numbers, these are bytes.
    """
    num_bytes = HALVES[type].stop - HALVES[type].start
    halves_at = tiles.shape[-1] - TILE_ROWS * num_bytes
    words, halves = tiles[..., :halves_at].view(torch.int32), tiles[..., halves_at:]
    if num_bytes != 1:
        halves = halves.view(torch.int16)
    grid = tiles.shape[:2]
    return words.view(*grid, -1, TILE_ROWS), halves.view(*grid, halves.shape[-1] // TILE_ROWS, TILE_ROWS)
