"""dequantize: the values that stand in GGUF blocks, in plain torch on any device.

Shapes: N rows, C values of a row, B blocks.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType, quants
from gguf.quants import IQ4_NL, MXFP4, NVFP4
from torch import Tensor, int8


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
    high = words >> 12 << _constant((0, 4, 8, 12), torch.int64, words.device)
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


def _signs(device: torch.device) -> Tensor:
    """Eight signs for each seven: the last one makes their number even."""
    return _constant(tuple(quants.IQ2_XXS.ksigns), torch.uint8, device)


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
    powers = _constant(tuple(3**i for i in range(count)), torch.uint8, packed.device)
    shifted = packed.unsqueeze(1) * powers.unsqueeze(1)  # wraps: the whole part goes
    return (shifted.int() * 3 >> 8).flatten(1)


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
    return _constant(tuple(table), torch.float32, places.device)[places.int()]


@cache
def _constant(numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers where they are needed. They are sent once: a captured step sends nothing."""
    return torch.tensor(numbers, dtype=dtype, device=device)


def dequantize(blocks: Tensor, type: GGMLType) -> Tensor:
    """Blocks of uint8 (N, bytes of a row) as float32 (N, C), bit-equal to gguf.quants.dequantize."""
    block_bytes = GGML_QUANT_SIZES[type][1]
    return _READERS[type](blocks.reshape(-1, block_bytes)).reshape(len(blocks), -1)


#: Each reads uint8 (B, bytes of a block) as float32 (B, ...), the values of a block in order.
_READERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: lambda blocks: blocks.view(torch.float32),
    GGMLType.F16: lambda blocks: blocks.view(torch.float16).float(),
    GGMLType.BF16: lambda blocks: blocks.view(torch.bfloat16).float(),
} | {
    GGMLType[reader.__name__.upper()]: reader
    for reader in (
        *(q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, tq1_0, tq2_0),
        *(iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq4_nl, iq4_xs, mxfp4, nvfp4),
    )
}


def numbers(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes (B, bytes), little end first, as numbers of `dtype`; a copy, since they may lie anywhere."""
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
    shifts = _constant(offsets, words.dtype, words.device)
    values: Tensor = words.unsqueeze(-1) >> shifts & 2**bits - 1
    return values


def words16(packed: Tensor) -> Tensor:
    """Unsigned numbers of 16 bits as int32."""
    return numbers(packed, torch.int16).int() & 0xFFFF
