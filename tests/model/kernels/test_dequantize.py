"""Dequantised values are those of the gguf package, to the last bit."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType
from torch.utils._python_dispatch import TorchDispatchMode

from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.kernels.dequantize import dequantize

DOCS = Path(__file__).parents[3] / "docs" / "models.md"

#: A row fits every type: blocks have 1, 32, 64 or 256 values.
ROW_VALUES = 512
FLOAT16_EXTREMES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]


def is_known_to_gguf(type: GGMLType) -> bool:
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[type][1]), np.uint8), type)
    except NotImplementedError:
        return False
    return True


TYPES = [type for type in GGMLType if is_known_to_gguf(type)]
SCALED_FIRST = [GGMLType.Q4_0, GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.IQ2_XS, GGMLType.IQ4_XS]


def random_blocks(type: GGMLType, seed: int, num_rows: int = 8) -> np.ndarray:
    """Each bit by chance: all scales, signs and values come up, with NaN and infinity among the scales."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[type]
    row_bytes = ROW_VALUES // block_values * block_bytes
    return np.random.default_rng(seed).integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)


def assert_bit_equal(blocks: np.ndarray, type: GGMLType) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, type).reshape(len(blocks), -1)
    values = dequantize(torch.from_numpy(blocks), type)
    assert values.dtype == torch.float32
    is_number = ~np.isnan(expected)
    assert np.array_equal(values.isnan().numpy(), ~is_number)
    assert np.array_equal(values.numpy()[is_number].view(np.uint32), expected[is_number].view(np.uint32))


def test_all_types_that_gguf_can_read_are_read() -> None:
    assert set(SUPPORTED_TYPES) == set(TYPES)


def test_docs_name_the_types_that_are_read() -> None:
    listed = re.search(r"Weights may be (.*), mixed", DOCS.read_text(), re.DOTALL)
    assert listed
    assert set(re.findall(r"[A-Z0-9_]{3,}", listed[1])) == {type.name for type in SUPPORTED_TYPES}


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_random_blocks_are_bit_equal_to_gguf(type: GGMLType) -> None:
    for seed in range(20):
        assert_bit_equal(random_blocks(type, seed), type)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_numbers_of_a_type_are_sent_to_a_device_once(type: GGMLType) -> None:
    """A captured step of a GPU may send none."""
    blocks = torch.from_numpy(random_blocks(type, seed=0))
    dequantize(blocks, type)
    with Watch() as watch:
        dequantize(blocks, type)
    assert "lift_fresh" not in watch.names


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_one_row_is_read_alone(type: GGMLType) -> None:
    """Parts of a single row are contiguous wherever they begin."""
    assert_bit_equal(random_blocks(type, seed=0, num_rows=1), type)


@pytest.mark.parametrize("scale", FLOAT16_EXTREMES, ids=hex)
@pytest.mark.parametrize("type", SCALED_FIRST, ids=lambda type: type.name)
def test_extreme_scales_are_bit_equal_to_gguf(type: GGMLType, scale: int) -> None:
    blocks = random_blocks(type, seed=0)
    block_bytes = gguf.GGML_QUANT_SIZES[type][1]
    blocks[:, ::block_bytes], blocks[:, 1::block_bytes] = scale & 255, scale >> 8
    assert_bit_equal(blocks, type)


@pytest.mark.parametrize("type", [GGMLType.MXFP4, GGMLType.NVFP4], ids=lambda type: type.name)
def test_every_scale_of_a_byte_is_bit_equal_to_gguf(type: GGMLType) -> None:
    num_scales = {GGMLType.MXFP4: 1, GGMLType.NVFP4: 4}[type]
    blocks = random_blocks(type, seed=0, num_rows=256)
    block_bytes = gguf.GGML_QUANT_SIZES[type][1]
    for i in range(num_scales):
        blocks[:, i::block_bytes] = np.arange(256, dtype=np.uint8)[:, None]
    assert_bit_equal(blocks, type)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16], ids=lambda type: type.name)
def test_every_half_precision_number_is_bit_equal_to_gguf(type: GGMLType) -> None:
    assert_bit_equal(np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(8, -1), type)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_a_row_range_of_a_file_can_be_read_alone(type: GGMLType) -> None:
    blocks = torch.from_numpy(random_blocks(type, seed=1))
    whole = dequantize(blocks, type)
    part = dequantize(blocks[3:5], type)
    assert part.view(torch.int32).equal(whole[3:5].contiguous().view(torch.int32))
