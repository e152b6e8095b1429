"""Types of blocks: whose values can be read, and which can be laid out in tiles, and how."""

from gguf import GGMLQuantizationType as GGMLType

#: All that `gguf.quants` reads.
SUPPORTED_TYPES = (
    *(GGMLType.F32, GGMLType.F16, GGMLType.BF16),
    *(GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0),
    *(GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K),
    *(GGMLType.TQ1_0, GGMLType.TQ2_0),
    *(GGMLType.IQ1_S, GGMLType.IQ1_M, GGMLType.IQ2_XXS, GGMLType.IQ2_XS, GGMLType.IQ2_S),
    *(GGMLType.IQ3_XXS, GGMLType.IQ3_S, GGMLType.IQ4_NL, GGMLType.IQ4_XS),
    *(GGMLType.MXFP4, GGMLType.NVFP4),
)

#: Rows of a tile.
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
