"""Ternary blocks of 256 values, each -1, 0 or 1 times a scale.

Shapes: B blocks.
"""

import torch
from torch import Tensor

from llama_herd.model.kernels.bits import scale, unpack


def tq1_0(blocks: Tensor) -> Tensor:
    """54 bytes: 32 + 16 of five digits of base 3 each, 4 of four digits, a float16 scale."""
    parts = (_digits(blocks[:, :32], 5), _digits(blocks[:, 32:48], 5), _digits(blocks[:, 48:52], 4))
    return (torch.cat(parts, dim=1).float() - 1) * scale(blocks[:, 52:])


def tq2_0(blocks: Tensor) -> Tensor:
    """66 bytes: 64 of values in 2 bits, a float16 scale."""
    return (unpack(blocks[:, :64], bits=2, run=32).float() - 1) * scale(blocks[:, 64:])


def _digits(packed: Tensor, count: int) -> Tensor:
    """The first digit of all bytes, then the second, and so on.

    A byte is a fraction of 256: times a power of 3, without its whole part, its next digit is in front.
    """
    powers = torch.tensor([3**i for i in range(count)], dtype=torch.uint8, device=packed.device)
    shifted = packed.unsqueeze(1) * powers.unsqueeze(1)  # wraps: the whole part goes
    return (shifted.int() * 3 >> 8).flatten(1)
