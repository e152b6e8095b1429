"""Blocks whose 4-bit values are places in a table of 16 numbers.

Shapes: B blocks. The tables are those of the gguf package.
"""

import torch
from gguf.quants import IQ4_NL, MXFP4, NVFP4
from torch import Tensor

from llama_herd.model.kernels.bits import fields, numbers, scale, unpack, words16


def iq4_nl(blocks: Tensor) -> Tensor:
    """18 bytes, 32 values: a float16 scale, then 16 bytes as in Q4_0."""
    return _look_up(IQ4_NL.kvalues, unpack(blocks[:, 2:], bits=4, run=16)) * scale(blocks[:, :2])


def iq4_xs(blocks: Tensor) -> Tensor:
    """136 bytes, 256 values: a float16, 2 + 4 bytes of 6-bit scales (high bits first), 128 of values."""
    high = fields(words16(blocks[:, 2:4]), tuple(range(0, 16, 2)), bits=2).flatten(1)
    scales = scale(blocks[:, :2]) * ((unpack(blocks[:, 4:8], bits=4, run=1) | high << 4).float() - 32)
    values = _look_up(IQ4_NL.kvalues, unpack(blocks[:, 8:], bits=4, run=16))
    return values.view(-1, 8, 32) * scales.unsqueeze(-1)


def mxfp4(blocks: Tensor) -> Tensor:
    """17 bytes, 32 values: a power of two (its exponent, 128 the one of 1), then 16 bytes as in Q4_0."""
    exponent = blocks[:, :1].int()
    bits = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return _look_up(MXFP4.kvalues, unpack(blocks[:, 1:], bits=4, run=16)) * numbers(bits, torch.float32)


def nvfp4(blocks: Tensor) -> Tensor:
    """36 bytes, 64 values: 4 scales in 4 bits of exponent and 3 of fraction, then 4 times 8 bytes."""
    exponent, fraction = (blocks[:, :4] >> 3 & 15).float(), (blocks[:, :4] & 7).float()
    scales = torch.where(exponent == 0, fraction * 2**-9, (1 + fraction / 8) * torch.exp2(exponent - 7)) * 0.5
    scales = torch.where(blocks[:, :4] == 0x7F, 0, scales)  # their NaN
    values = _look_up(NVFP4.kvalues, unpack(blocks[:, 4:], bits=4, run=8))
    return values.view(-1, 4, 16) * scales.unsqueeze(-1)


def _look_up(table: tuple[int, ...], places: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32, device=places.device)[places.int()]
