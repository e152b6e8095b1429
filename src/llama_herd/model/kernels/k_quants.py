"""K-quants: blocks of 256 values in groups of 16 or 32, whose scales are quantised themselves.

Shapes: B blocks, G groups of a block. Sums and products are in the order of gguf.quants.
"""

import torch
from torch import Tensor, int8

from llama_herd.model.kernels.bits import numbers, scale, unpack


def q2_k(blocks: Tensor) -> Tensor:
    """84 bytes: 16 of scales (low nibbles) and minima (high), 64 of values, float16 for each of the two."""
    coarse, values = blocks[:, :16], unpack(blocks[:, 16:80], bits=2, run=32)
    scales = scale(blocks[:, 80:82]) * (coarse & 15).float()
    minima = scale(blocks[:, 82:84]) * (coarse >> 4).float()
    return _grouped(values, 16) * scales.unsqueeze(-1) - minima.unsqueeze(-1)


def q3_k(blocks: Tensor) -> Tensor:
    """110 bytes: 32 of third bits (0 takes 4 away), 64 of values, 12 of 6-bit scales, a float16 for them."""
    high = unpack(blocks[:, :32], bits=1, run=32) ^ 1
    values = unpack(blocks[:, 32:96], bits=2, run=32).view(int8) - (high << 2).view(int8)
    low_scales, high_scales = unpack(blocks[:, 96:104], 4, run=8), unpack(blocks[:, 104:108], 2, run=4)
    scales = scale(blocks[:, 108:110]) * ((low_scales | high_scales << 4).float() - 32)
    return _grouped(values, 16) * scales.unsqueeze(-1)


def q4_k(blocks: Tensor) -> Tensor:
    """144 bytes: float16 for scales and for minima, 12 of both in 6 bits, 128 of values."""
    scales, minima = _scales_and_minima(blocks[:, :16])
    return _grouped(unpack(blocks[:, 16:], bits=4, run=32), 32) * scales - minima


def q5_k(blocks: Tensor) -> Tensor:
    """176 bytes: as Q4_K, with 32 of fifth bits before the values."""
    scales, minima = _scales_and_minima(blocks[:, :16])
    fifth = unpack(blocks[:, 16:48], bits=1, run=32)
    values = unpack(blocks[:, 48:], bits=4, run=32) | fifth << 4
    return _grouped(values, 32) * scales - minima


def q6_k(blocks: Tensor) -> Tensor:
    """210 bytes: 128 of low bits, 64 of the two above, 16 scales of signed bytes, a float16 for them."""
    low, high = unpack(blocks[:, :128], bits=4, run=64), unpack(blocks[:, 128:192], bits=2, run=32)
    scales = scale(blocks[:, 208:]) * numbers(blocks[:, 192:208], int8).float()
    return (_grouped(low | high << 4, 16) - 32) * scales.unsqueeze(-1)


def _grouped(values: Tensor, length: int) -> Tensor:
    """Whole numbers (B, 256) as float32 (B, G, length)."""
    return values.view(len(values), -1, length).float()


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The head of Q4_K and Q5_K (B, 16) as float32 (B, 8, 1) each.

    Of 12 bytes the first four hold scales 0-3, the next four minima 0-3, in their low 6 bits. The last four
    hold the low nibbles of scales 4-7 and of minima 4-7, whose two high bits the first eight have room for.
    """
    scales, minima, both = packed[:, 4:8], packed[:, 8:12], packed[:, 12:16]
    all_scales = torch.cat((scales & 63, both & 15 | scales >> 2 & 48), dim=1)
    all_minima = torch.cat((minima & 63, both >> 4 | minima >> 2 & 48), dim=1)
    coarse = scale(packed[:, :4])  # (B, 2)
    return (coarse[:, :1] * all_scales.float()).unsqueeze(-1), (coarse[:, 1:] * all_minima.float()).unsqueeze(
        -1
    )
