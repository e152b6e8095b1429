"""tiles: the blocks of a matrix in the order in which native kernels read them.

A tile is 16 rows x 32 columns: 16 blocks of a type whose block is a float16 scale and then words of 4 bytes.
One row of tiles follows the other; in a tile stand word after word of all 16 rows, then their scales. No byte
is added but for the rows that the last tiles lack.

Shapes: N rows, R = N / 16 rows of tiles, K = C / 32 tiles of a row, W words of a block.
"""

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

TILE_ROWS = 16
#: The types that can be laid out so.
TILED_TYPES = frozenset({GGMLType.Q4_0, GGMLType.Q8_0})
_SCALE_BYTES, _WORD_BYTES = 2, 4


def empty_tiles(num_rows: int, columns: int, type: GGMLType) -> Tensor:
    """Tiles for as many rows, all zero: uint8 (R, K, bytes of a tile)."""
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    return torch.zeros(
        -(-num_rows // TILE_ROWS), columns // block_values, TILE_ROWS * block_bytes, dtype=torch.uint8
    )


def lay_out(blocks: Tensor, tiles: Tensor) -> None:
    """Write rows of blocks (N, bytes of a row) into the first tiles that are given; N is a multiple of 16."""
    words, scales = _parts(tiles[: len(blocks) // TILE_ROWS])
    by_row = blocks.view(len(words), TILE_ROWS, words.shape[1], -1)  # (R, 16, K, bytes of a block)
    in_words = by_row[..., _SCALE_BYTES:].reshape(*by_row.shape[:3], -1, _WORD_BYTES)  # (R, 16, K, W, 4)
    words.copy_(in_words.permute(0, 2, 3, 1, 4))  # (R, K, W, 16, 4)
    scales.copy_(by_row[..., :_SCALE_BYTES].transpose(1, 2))  # (R, K, 16, 2)


def blocks_of(tiles: Tensor, ids: Tensor) -> Tensor:
    """The blocks of single rows as their file has them: uint8 (ids, bytes of a row)."""
    words, scales = _parts(tiles)
    row, lane = ids // TILE_ROWS, ids % TILE_ROWS
    found = (scales[row, :, lane], words[row, :, :, lane].flatten(2))  # (ids, K, bytes)
    return torch.cat(found, dim=-1).flatten(1)


def _parts(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The words (R, K, W, 16, 4) and the scales (R, K, 16, 2) of tiles, as views of them."""
    num_scale_bytes = TILE_ROWS * _SCALE_BYTES
    words, scales = tiles[..., :-num_scale_bytes], tiles[..., -num_scale_bytes:]
    grid = tiles.shape[:2]
    return words.view(*grid, -1, TILE_ROWS, _WORD_BYTES), scales.view(*grid, TILE_ROWS, _SCALE_BYTES)
