"""Dequantised values are those of the gguf package, to the last bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.dequantize import dequantize

TYPES = [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0]
FLOAT16_EXTREMES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]


def random_blocks(type: GGMLType, seed: int) -> np.ndarray:
    """8 rows of 96 values, each bit by chance: all scales, signs and nibbles come up."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[type]
    row_bytes = 96 // block_values * block_bytes
    return np.random.default_rng(seed).integers(0, 256, (8, row_bytes), dtype=np.uint8)


def assert_bit_equal(blocks: np.ndarray, type: GGMLType) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.quants.dequantize(blocks, type).reshape(len(blocks), -1)
    values = dequantize(torch.from_numpy(blocks), type)
    assert values.dtype == torch.float32
    is_number = ~np.isnan(expected)
    assert np.array_equal(values.isnan().numpy(), ~is_number)
    assert np.array_equal(values.numpy()[is_number].view(np.uint32), expected[is_number].view(np.uint32))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_random_blocks_are_bit_equal_to_gguf(type: GGMLType, seed: int) -> None:
    assert_bit_equal(random_blocks(type, seed), type)


@pytest.mark.parametrize("scale", FLOAT16_EXTREMES, ids=hex)
@pytest.mark.parametrize("type", [GGMLType.Q8_0, GGMLType.Q4_0], ids=lambda type: type.name)
def test_extreme_scales_are_bit_equal_to_gguf(type: GGMLType, scale: int) -> None:
    blocks = random_blocks(type, seed=0)
    block_bytes = gguf.GGML_QUANT_SIZES[type][1]
    blocks[:, ::block_bytes], blocks[:, 1::block_bytes] = scale & 255, scale >> 8
    assert_bit_equal(blocks, type)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16], ids=lambda type: type.name)
def test_every_half_precision_number_is_bit_equal_to_gguf(type: GGMLType) -> None:
    assert_bit_equal(np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(8, -1), type)


def test_a_row_range_of_a_file_can_be_read_alone() -> None:
    blocks = random_blocks(GGMLType.Q4_0, seed=1)
    whole = dequantize(torch.from_numpy(blocks), GGMLType.Q4_0)
    assert dequantize(torch.from_numpy(blocks)[3:5], GGMLType.Q4_0).equal(whole[3:5])
