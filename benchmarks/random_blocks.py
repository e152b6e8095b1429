"""Blocks of random bits whose values spread as drawn ones do, which would take minutes to quantise."""

import math

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

#: Where the float16 numbers of a block stand, and what they are for values that spread by one.
HALVES: dict[GGMLType, dict[int, float]] = {
    GGMLType.Q4_0: {0: 1 / 4.6},
    GGMLType.Q4_1: {0: 1 / 4.6, 2: -7.5 / 4.6},
    GGMLType.Q5_0: {0: 1 / 9.2},
    GGMLType.Q5_1: {0: 1 / 9.2, 2: -15.5 / 9.2},
    GGMLType.Q8_0: {0: 1 / 74},
    GGMLType.Q2_K: {80: 1 / 13.8, 82: 1.5 / 13.8},
    GGMLType.Q3_K: {108: 1 / 43.5},
    GGMLType.Q4_K: {0: 1 / 200, 2: 7.5 / 200},
    GGMLType.Q5_K: {0: 1 / 410, 2: 15.5 / 410},
    GGMLType.Q6_K: {208: 1 / 1_370},
    GGMLType.IQ4_NL: {0: 1 / 67},
    GGMLType.IQ4_XS: {0: 1 / 1_250},
}

#: Bits are drawn as whole words, all 64 of them.
WORD_BYTES, LEAST_WORD = 8, -(1 << 63)


def random_blocks(type: GGMLType, num_rows: int, columns: int, seed: int, device: torch.device) -> Tensor:
    """Blocks of random bits, but for their scales: uint8 (rows, bytes of a row).

    The scale of every other block, at random, is negative: four bits alone lean to one side.
    """
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    shape = (num_rows, columns // block_values, block_bytes)
    words = torch.empty(-(-math.prod(shape) // WORD_BYTES), dtype=torch.int64, device=device)
    words.random_(LEAST_WORD, None, generator=torch.Generator(device).manual_seed(seed))
    blocks = words.view(torch.uint8)[: math.prod(shape)].view(shape)
    first = next(iter(HALVES[type]))
    signs = blocks[..., first + 1] & 0x80  # (rows, blocks)
    for start, scale in HALVES[type].items():
        half = torch.tensor([scale / math.sqrt(columns)], dtype=torch.float16).view(torch.uint8)
        blocks[..., start : start + 2] = half.to(device)
        blocks[..., start + 1] ^= signs
    return blocks.flatten(1)
