"""Blocks of 256 values that are rows of a grid, four or eight values at a time, with signs or a shift.

Shapes: B blocks, S scales of a block. The grids are those of the gguf package, and so is the order of
sums and products.
"""

from functools import cache
from typing import Any

import torch
from gguf import quants
from torch import Tensor

from llama_herd.model.kernels.bits import fields, numbers, scale, unpack, words16


def iq2_xxs(blocks: Tensor) -> Tensor:
    """66 bytes: a float16, then 8 times four rows of one byte and a word of four signs and a scale."""
    words = numbers(blocks[:, 2:], torch.int32).view(-1, 8, 2)
    rows, (signs, fine) = numbers(words[..., :1], torch.uint8).flatten(1), _signs_and_scale(words[..., 1])
    scales = scale(blocks[:, :2]) * (fine.float() + 0.5) * 0.25
    return _signed(quants.IQ2_XXS, rows, signs, scales)


def iq2_xs(blocks: Tensor) -> Tensor:
    """74 bytes: a float16, 32 words of a row (9 bits) and its signs (7), 8 of scales."""
    words = words16(blocks[:, 2:66])
    scales = scale(blocks[:, :2]) * (unpack(blocks[:, 66:], bits=4, run=1).float() + 0.5) * 0.25
    return _signed(quants.IQ2_XS, words & 511, _signs(words.device)[words >> 9], scales)


def iq2_s(blocks: Tensor) -> Tensor:
    """82 bytes: a float16, 32 of rows, 32 of signs, 8 of the rows' two high bits, 8 of scales."""
    rows = blocks[:, 2:34].int() | unpack(blocks[:, 66:74], bits=2, run=1).int() << 8
    scales = scale(blocks[:, :2]) * (unpack(blocks[:, 74:], bits=4, run=1).float() + 0.5) * 0.25
    return _signed(quants.IQ2_S, rows, blocks[:, 34:66], scales)


def iq3_xxs(blocks: Tensor) -> Tensor:
    """98 bytes: a float16, 64 of rows of four, 8 words of four signs and a scale."""
    signs, fine = _signs_and_scale(numbers(blocks[:, 66:], torch.int32))
    scales = scale(blocks[:, :2]) * (fine.float() + 0.5) * 0.5
    return _signed(quants.IQ3_XXS, blocks[:, 2:66], signs, scales)


def iq3_s(blocks: Tensor) -> Tensor:
    """110 bytes: a float16, 64 of rows of four, 8 of their ninth bits, 32 of signs, 4 of scales."""
    rows = blocks[:, 2:66].int() | unpack(blocks[:, 66:74], bits=1, run=1).int() << 8
    scales = scale(blocks[:, :2]) * (unpack(blocks[:, 106:], bits=4, run=1).float() * 2 + 1)
    return _signed(quants.IQ3_S, rows, blocks[:, 74:106], scales)


def iq1_s(blocks: Tensor) -> Tensor:
    """50 bytes: a float16, 32 of rows, 8 words of four rows' three high bits, a scale and a shift's sign."""
    words = words16(blocks[:, 34:])
    rows = blocks[:, 2:34].int() | fields(words, (0, 3, 6, 9), bits=3).flatten(1) << 8
    scales = scale(blocks[:, :2]) * ((words >> 12 & 7) * 2 + 1).float()
    return _shifted(rows, words >> 15, scales)


def iq1_m(blocks: Tensor) -> Tensor:
    """56 bytes: 32 of rows, 16 of nibbles (three high bits, a shift's sign), 4 words of scales.

    The words hold four scales of 3 bits each; their highest nibbles are together the float16 for all.
    """
    nibbles, words = unpack(blocks[:, 32:48], bits=4, run=1).int(), words16(blocks[:, 48:])
    rows = blocks[:, :32].int() | (nibbles & 7) << 8
    high = words >> 12 << torch.tensor([0, 4, 8, 12], device=words.device)
    coarse = high.sum(dim=1, keepdim=True).short().view(torch.float16).float()
    scales = coarse * (fields(words, (0, 3, 6, 9), bits=3).flatten(1) * 2 + 1).float()
    return _shifted(rows, nibbles >> 3, scales)


def _signed(kind: Any, rows: Tensor, signs: Tensor, scales: Tensor) -> Tensor:
    """Rows of the grid of a type; each byte of signs belongs to eight values. Scales are (B, S)."""
    signs_by_value = 1 - unpack(signs, bits=1, run=1).float() * 2  # (B, 256)
    values = _grid(kind, rows.device)[rows.int()].flatten(1) * signs_by_value
    return values.view(*scales.shape, -1) * scales.unsqueeze(-1)


def _shifted(rows: Tensor, is_below: Tensor, scales: Tensor) -> Tensor:
    """Rows of IQ1's grid, an eighth above or below. Scales are (B, S), shifts (B, as many or more)."""
    shifts = 0.125 - is_below.float() * 0.25
    values = _grid(quants.IQ1_S, rows.device)[rows].view(*shifts.shape, -1) + shifts.unsqueeze(-1)
    return values.view(*scales.shape, -1) * scales.unsqueeze(-1)


def _signs_and_scale(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words (B, 8) of four times 7 bits and 4: bytes of signs (B, 32), and scales (B, 8)."""
    return _signs(words.device)[fields(words, (0, 7, 14, 21), bits=7).flatten(1)], words >> 28 & 15


@cache
def _grid(kind: Any, device: torch.device) -> Tensor:
    """float32 (rows, values of a row)."""
    kind.init_grid()
    return torch.from_numpy(kind.grid).reshape(kind.grid_shape).to(device)


@cache
def _signs(device: torch.device) -> Tensor:
    """Eight signs for each seven: the last one makes their number even."""
    return torch.tensor(list(quants.IQ2_XXS.ksigns), dtype=torch.uint8, device=device)
