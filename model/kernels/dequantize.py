"""dequantize: the values that stand in GGUF blocks, in plain torch.

Shapes: N rows, C values of a row, b blocks of a row.
"""

from collections.abc import Callable

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor


def dequantize(blocks: Tensor, type: GGMLType) -> Tensor:
    """Blocks of uint8 (N, bytes of a row) as float32 (N, C), bit-equal to gguf.quants.dequantize."""
    return _READERS[type](blocks)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    """32 values a block: a float16 scale, then 32 signed bytes."""
    scales, bytes = _scales_and_rest(blocks, block_bytes=34)
    return (bytes.view(torch.int8).float() * scales).flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    """32 values a block: a float16 scale, then 16 bytes; values 0-15 in their low nibbles, 16-31 above."""
    scales, bytes = _scales_and_rest(blocks, block_bytes=18)
    nibbles = torch.cat((bytes & 15, bytes >> 4), dim=-1)  # (N, b, 32)
    return ((nibbles.float() - 8) * scales).flatten(1)


def _scales_and_rest(blocks: Tensor, block_bytes: int) -> tuple[Tensor, Tensor]:
    """The float16 that each block begins with, as float32 (N, b, 1), and its other bytes (N, b, ...)."""
    by_block = blocks.view(len(blocks), -1, block_bytes)
    return by_block[..., :2].contiguous().view(torch.float16).float(), by_block[..., 2:]


_READERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
}
