"""How tiles are laid out: which types of blocks can be, and how many rows a tile has."""

from gguf import GGMLQuantizationType as GGMLType

TILE_ROWS = 16
#: Where a block has its numbers of 16 bits, or a single byte, by the types that can be laid out. All else is
#: words.
HALVES = {
    GGMLType.Q4_0: slice(0, 2),
    GGMLType.Q4_1: slice(0, 4),
    GGMLType.Q5_0: slice(0, 2),
    GGMLType.Q5_1: slice(0, 4),
    GGMLType.Q8_0: slice(0, 2),
    GGMLType.Q2_K: slice(80, 84),
    GGMLType.Q3_K: slice(108, 110),
    GGMLType.Q4_K: slice(0, 4),
    GGMLType.Q5_K: slice(0, 4),
    GGMLType.Q6_K: slice(208, 210),
    GGMLType.IQ4_NL: slice(0, 2),
    GGMLType.IQ4_XS: slice(0, 4),
    GGMLType.MXFP4: slice(0, 1),
}
TILED_TYPES = frozenset(HALVES)
#: Plain numbers, of which each 32 are a block.
NUMBERS, NUMBERS_OF_BLOCK = GGMLType.BF16, 32
HALVES[NUMBERS] = slice(0, 0)
