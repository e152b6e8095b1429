"""Native norms and gates say what float64 says, each row alone."""

import pytest
import torch
from torch import Tensor

from llama_herd.model.kernels.elementwise import (
    ACTIVATION_NUMBERS,
    Elementwise,
    RowKernels,
)
from llama_herd.model.kernels.exact import exact_gate, exact_norm
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.llama2 import Mlp, RMSNorm
from tests.closeness import assert_close

pytestmark = pytest.mark.long

#: What float32 may round, and what one rounding to bfloat16 changes at most, in parts of a number.
FLOAT32_ROUNDING, BFLOAT16_ROUNDING = 3e-6, 2**-8


def is_close(y: Tensor, exact: Tensor, size: Tensor | float = 0.0) -> bool:
    """Whether y is what it would be in float64, but for rounding, also of numbers of a size."""
    rounding = FLOAT32_ROUNDING + (BFLOAT16_ROUNDING if y.dtype is torch.bfloat16 else 0)
    return bool(((y.double() - exact).abs() <= rounding * exact.abs() + 1e-8 * size + 1e-30).all())


def is_gated_right(kernels: RowKernels, gate_up: Tensor, activation: str) -> bool:
    """Whether a gate is what float64 says: of a gelu that is all but shut, but for a bit of its input."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    size = 0.0 if activation == "silu" else (gate * up).abs()
    return is_close(kernels.gate(gate_up, activation), exact_gate(gate_up, activation), size)


@pytest.fixture(scope="module")
def native(set_kernels: Kernels) -> Elementwise:
    assert set_kernels.elementwise is not None
    return set_kernels.elementwise


@pytest.fixture
def two_threads(threads: None) -> None:
    torch.set_num_threads(2)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
ACTIVATIONS = pytest.mark.parametrize("activation", ACTIVATION_NUMBERS)
COLUMNS = pytest.mark.parametrize("columns", [1, 7, 8, 16, 31, 64, 100, 2048])


@pytest.mark.drawn
@DTYPES
@COLUMNS
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_they_say_what_float64_says(
    native: Elementwise, columns: int, size: float, dtype: torch.dtype
) -> None:
    for num_rows in (0, 1, 5, 70):
        x, weight = (torch.randn(num_rows, 2 * columns) * size).to(dtype), torch.randn(2 * columns)
        assert is_close(native.norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))
        small = x.clamp(-80, 80)  # beyond, silu is no number of float32 to its last digits
        for activation in ACTIVATION_NUMBERS:
            assert is_gated_right(native, small, activation)


@DTYPES
@ACTIVATIONS
@pytest.mark.usefixtures("two_threads")
def test_a_row_has_the_same_bits_alone_and_among_others(
    native: Elementwise, dtype: torch.dtype, activation: str
) -> None:
    x, weight = torch.randn(40, 4098).to(dtype), torch.randn(4098)
    normed, gated = native.norm(x, weight, 1e-5), native.gate(x, activation)
    for row in range(len(x)):
        alone = x[row : row + 1]
        assert native.norm(alone, weight, 1e-5)[0].equal(normed[row])
        assert native.gate(alone, activation)[0].equal(gated[row])


@DTYPES
@ACTIVATIONS
def test_gates_far_from_zero_are_open_or_shut(
    native: Elementwise, activation: str, dtype: torch.dtype
) -> None:
    gates = torch.tensor([[100.0, 1e30, -100.0, -1e5, torch.nan]], dtype=dtype)
    gated = native.gate(torch.cat((gates, torch.full_like(gates, 2.0)), dim=1), activation)[0]
    assert gated[:2].tolist() == [200.0, gates[0, 1] * 2]
    assert gated[2:4].abs().max() < 1e-30
    assert gated[4].isnan()


def test_what_is_not_finite_stays_in_its_row(native: Elementwise) -> None:
    x, weight = torch.randn(3, 64), torch.randn(64)
    good = native.norm(x, weight, 1e-5)
    x[1, 5] = torch.nan
    y = native.norm(x, weight, 1e-5)
    assert y[1].isnan().all()
    assert y[::2].equal(good[::2])


@DTYPES
@ACTIVATIONS
def test_layers_say_what_they_say_without(native: Elementwise, dtype: torch.dtype, activation: str) -> None:
    x, weight = torch.randn(9, 64).to(dtype), torch.randn(64)
    rounding = 1e-6 if dtype is torch.float32 else 2**-7
    plain, found = RMSNorm(weight, 1e-5)(x), RMSNorm(weight, 1e-5, native)(x)
    assert_close(found, plain, atol=rounding, rtol=rounding)

    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    mlp: list[torch.Tensor] = [Mlp(same, same, activation, kernel)(x) for kernel in (None, native)]  # type: ignore[arg-type]
    assert_close(mlp[1], mlp[0], atol=rounding, rtol=rounding)


def test_what_they_are_not_made_for_is_not_taken(native: Elementwise) -> None:
    x = torch.randn(4, 6, 8)
    assert native.takes(x[0])
    assert not native.takes(x)
    assert not native.takes(x[0].half())
    assert not native.takes(x[:, 0])
