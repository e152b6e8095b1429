"""Blocks of 32 values with a scale, and of some types a smallest value.

Shapes: B blocks. Sums and products are in the order of gguf.quants, so that their bits are equal.
"""

from torch import Tensor, int8

from llama_herd.model.kernels.bits import numbers, scale, unpack


def q4_0(blocks: Tensor) -> Tensor:
    """18 bytes: a float16 scale, then 16 bytes; values 0-15 in their low nibbles, 16-31 above."""
    return (unpack(blocks[:, 2:], bits=4, run=16).float() - 8) * scale(blocks[:, :2])


def q4_1(blocks: Tensor) -> Tensor:
    """20 bytes: as Q4_0, with a float16 minimum after the scale."""
    return unpack(blocks[:, 4:], bits=4, run=16).float() * scale(blocks[:, :2]) + scale(blocks[:, 2:4])


def q5_0(blocks: Tensor) -> Tensor:
    """22 bytes: as Q4_0, with 4 bytes of fifth bits after the scale."""
    return (_five_bits(blocks[:, 2:]) - 16) * scale(blocks[:, :2])


def q5_1(blocks: Tensor) -> Tensor:
    """24 bytes: as Q5_0, with a float16 minimum after the scale."""
    return _five_bits(blocks[:, 4:]) * scale(blocks[:, :2]) + scale(blocks[:, 2:4])


def q8_0(blocks: Tensor) -> Tensor:
    """34 bytes: a float16 scale, then 32 signed bytes."""
    return numbers(blocks[:, 2:], int8).float() * scale(blocks[:, :2])


def _five_bits(packed: Tensor) -> Tensor:
    """32 fifth bits in order, then the nibbles of 16 bytes: (B, 20) to float32 (B, 32)."""
    fifth = unpack(packed[:, :4], bits=1, run=1)
    return (unpack(packed[:, 4:], bits=4, run=16) | fifth << 4).float()
