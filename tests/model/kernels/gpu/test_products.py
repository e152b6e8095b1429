"""Products in Triton are products in float64 with the values that stand in the blocks."""

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.exact import multiplies_right
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES

TYPES = sorted(PARTED_TYPES)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Rows and columns: less than a tile, whole tiles, and more than whole ones. K-quants have whole blocks only.
SIZES = [(1, 32), (47, 96), (32, 256), (70, 544)]


def columns_of(type: GGMLType, columns: int) -> int:
    block_values: int = GGML_QUANT_SIZES[type][0]
    return -(-columns // block_values) * block_values


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_every_number_of_tokens_is_multiplied(
    device: torch.device, type: GGMLType, dtype: torch.dtype, size: tuple[int, int]
) -> None:
    from llama_herd.model.kernels.gpu.products import product
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    num_rows, columns = size[0], columns_of(type, size[1])
    parts = random_parts(type, num_rows, columns, device)
    matrix = dequantize(parts.blocks(), type)
    x = torch.randn(70, columns, device=device).to(dtype)
    for count in (0, 1, 2, 16, 17, 33, 64, 65, 70):
        y = product(x[:count], parts)
        assert y.shape == (count, num_rows)
        assert y.dtype is dtype
        assert multiplies_right(y, x[:count], matrix), count


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_values_are_those_of_plain_torch_to_the_bit(
    device: torch.device, type: GGMLType, size: tuple[int, int]
) -> None:
    from llama_herd.model.kernels.gpu.products import values
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts = random_parts(type, size[0], columns_of(type, size[1]), device)
    matrix = dequantize(parts.blocks(), type)
    for dtype in (torch.float32, torch.float16):
        assert values(parts, dtype).equal(matrix.to(dtype))
    assert multiplies_right(
        values(parts, torch.bfloat16), torch.eye(parts.num_rows, device=device), matrix.T.contiguous()
    )


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_a_token_is_the_same_among_others(device: torch.device, type: GGMLType) -> None:
    """Of the tokens of one tile: others, and the kernel of a single token, may add in another order."""
    from llama_herd.model.kernels.gpu.products import product
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts = random_parts(type, 40, 512, device)
    x = torch.randn(16, 512, device=device).half()
    alone = torch.stack([product(row.expand(2, -1), parts)[0] for row in x])
    assert product(x, parts).equal(alone)


def test_a_large_matrix_goes_through_the_scratch_in_slabs(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_herd.model.kernels.gpu import products
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts = random_parts(GGMLType.Q4_0, 70, 64, device)
    monkeypatch.setattr(products, "SCRATCH_BYTES", 32 * 64 * torch.float16.itemsize)
    x = torch.randn(65, 64, device=device).half()
    assert multiplies_right(products.product(x, parts), x, dequantize(parts.blocks(), parts.type))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_token(device: torch.device, value: float) -> None:
    from llama_herd.model.kernels.gpu.products import product
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts = random_parts(GGMLType.Q8_0, 40, 256, device)
    x = torch.randn(5, 256, device=device).half()
    good = product(x, parts)
    x[3, 33] = value
    y = product(x, parts)
    assert not y[3].isfinite().any()
    others = torch.arange(5, device=device) != 3
    assert y[others].equal(good[others])


def test_what_cannot_be_multiplied_is_refused(device: torch.device) -> None:
    from llama_herd.model.kernels.gpu.products import product
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts = random_parts(GGMLType.Q8_0, 40, 64, device)
    with pytest.raises(ValueError, match=r"no kernel for x of \(3, 32\) and 64 columns"):
        product(torch.randn(3, 32, device=device), parts)
