"""bits: small numbers out of the bytes that they are packed in.

Shapes: B blocks; what is taken apart is uint8 (B, bytes).
"""

import torch
from torch import Tensor


def numbers(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes, little end first, as numbers of `dtype`; a copy, since they may lie anywhere."""
    return packed.clone(memory_format=torch.contiguous_format).view(dtype)


def scale(packed: Tensor) -> Tensor:
    """float16 numbers as float32."""
    return numbers(packed, torch.float16).float()


def unpack(packed: Tensor, bits: int, run: int) -> Tensor:
    """Numbers of `bits` bits: of each run of bytes the lowest bits of all, then the next ones, and so on."""
    groups = packed.reshape(len(packed), -1, 1, run)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).unsqueeze(1)
    values: Tensor = groups >> shifts & 2**bits - 1
    return values.flatten(1)


def fields(words: Tensor, offsets: tuple[int, ...], bits: int) -> Tensor:
    """Bit fields of whole numbers (B, words), one from each offset on: (B, words, offsets)."""
    shifts = torch.tensor(offsets, dtype=words.dtype, device=words.device)
    values: Tensor = words.unsqueeze(-1) >> shifts & 2**bits - 1
    return values


def words16(packed: Tensor) -> Tensor:
    """Unsigned numbers of 16 bits as int32."""
    return numbers(packed, torch.int16).int() & 0xFFFF
