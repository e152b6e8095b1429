"""A Linear is x @ W.T + bias, however its rows are stored."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import BlockSegment, DenseSegment, Linear, rows_per_slab
from llama_herd.model.weights.weight import Weight
from tests.closeness import assert_close

CPU = torch.device("cpu")


def stored(values: Tensor, type: GGMLType) -> Weight:
    blocks = gguf.quants.quantize(values.numpy(), type).view(np.uint8)
    return Weight(type, tuple(values.shape), torch.from_numpy(blocks))


def dequantised(weight: Weight) -> Tensor:
    return torch.from_numpy(gguf.quants.dequantize(weight.blocks.numpy(), weight.type))


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q8_0, GGMLType.Q4_0], ids=lambda type: type.name)
def test_a_linear_multiplies_by_the_stored_rows(type: GGMLType) -> None:
    weight = stored(torch.randn(24, 64), type)
    x = torch.randn(5, 64)
    assert_close(Linear.load([weight], CPU, torch.float32)(x), x @ dequantised(weight).T)


def test_weights_of_mixed_types_are_one_matmul_in_order() -> None:
    q, k = stored(torch.randn(8, 32), GGMLType.Q4_0), stored(torch.randn(4, 32), GGMLType.F16)
    linear = Linear.load([q, k], CPU, torch.float32)
    (segment,) = linear.segments
    assert isinstance(segment, DenseSegment)
    assert segment.matrix.equal(torch.cat((dequantised(q), dequantised(k))))


def test_segments_of_different_layouts_give_their_columns_in_order() -> None:
    first, second = torch.randn(8, 32), torch.randn(4, 32)
    x = torch.randn(5, 32)
    linear = Linear((DenseSegment(first), DenseSegment(second)))
    assert_close(linear(x), x @ torch.cat((first, second)).T)


@pytest.mark.parametrize("type", SUPPORTED_TYPES, ids=lambda type: type.name)
def test_blocks_multiply_and_look_up_as_their_numbers_do(type: GGMLType) -> None:
    values, x = torch.randn(2 * rows_per_slab(256, CPU) + 1, 256), torch.randn(5, 256)
    weight = Weight(type, tuple(values.shape), torch.from_numpy(stored_blocks(values.numpy(), type)))
    numbers = Linear.load([weight], CPU, torch.float32)
    blocks = Linear.load([weight], CPU, torch.float32, form=WeightForm.QUANTIZED)
    assert isinstance(blocks.segments[0], DenseSegment if type is GGMLType.F32 else BlockSegment)
    assert_close(blocks(x), numbers(x), atol=1e-4, rtol=1e-5)
    ids = torch.tensor([0, 2048, 7, 7, 1023, 1024])
    assert blocks.segments[0].rows(ids).equal(numbers.segments[0].rows(ids))


@pytest.mark.parametrize("is_native", [True, False])
def test_blocks_multiply_bfloat16_in_float32_where_the_processor_does_not(
    monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    monkeypatch.setattr("llama_herd.model.weights.linear.multiplies_bfloat16", lambda: is_native)
    weight, x = stored(torch.randn(300, 1024), GGMLType.Q4_0), torch.randn(37, 1024).bfloat16()
    wide, narrow = (
        Linear.load([weight], CPU, dtype, form=WeightForm.QUANTIZED)
        for dtype in (torch.float32, torch.bfloat16)
    )
    y, exact = narrow(x), wide(x.float())
    assert y.dtype is torch.bfloat16
    assert y.equal(exact.bfloat16()) is not is_native
    assert_close(y.float(), exact, atol=0.5, rtol=0)


def test_blocks_of_mixed_types_are_segments_in_order() -> None:
    types = [GGMLType.Q4_0, GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.F32, GGMLType.Q4_0]
    weights = [stored(torch.randn(8, 64), type) for type in types]
    linear = Linear.load(weights, CPU, torch.float32, form=WeightForm.QUANTIZED)
    kinds = [getattr(segment, "type", None) for segment in linear.segments]
    assert kinds == [GGMLType.Q4_0, GGMLType.Q8_0, None, GGMLType.Q4_0]
    x = torch.randn(5, 64)
    assert_close(linear(x), x @ torch.cat([dequantised(weight) for weight in weights]).T)


def test_in_fixed_tiles_a_row_has_the_same_bits_alone_and_among_others() -> None:
    weight = stored(torch.randn(300, 1024), GGMLType.Q4_0)
    linear = Linear.load([weight], CPU, torch.float32, row_tile=16, form=WeightForm.QUANTIZED)
    x = torch.randn(37, 1024)
    alone = torch.cat([linear(row.unsqueeze(0)) for row in x])
    assert linear(x).equal(alone)


def test_a_bias_is_added() -> None:
    matrix, bias, x = torch.randn(8, 32), torch.randn(8), torch.randn(5, 32)
    assert_close(Linear((DenseSegment(matrix),), bias)(x), x @ matrix.T + bias)


def test_rows_beyond_one_slab_are_kept() -> None:
    weight = stored(torch.randn(2 * rows_per_slab(32, CPU) + 1, 32), GGMLType.F32)
    (segment,) = Linear.load([weight], CPU, torch.float32).segments
    assert isinstance(segment, DenseSegment)
    assert segment.matrix.equal(dequantised(weight))


def test_values_are_of_the_compute_dtype() -> None:
    linear = Linear.load([stored(torch.randn(8, 32), GGMLType.F32)], CPU, torch.bfloat16)
    assert linear(torch.randn(5, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_what_is_loaded_does_not_share_the_file_s_memory() -> None:
    """The file's pages can go only when nothing points at them."""
    weight = stored(torch.randn(8, 32), GGMLType.F32)
    (segment,) = Linear.load([weight], CPU, torch.float32).segments
    assert isinstance(segment, DenseSegment)
    assert segment.matrix.untyped_storage().data_ptr() != weight.blocks.untyped_storage().data_ptr()
