"""What Triton does to rows is what float64 does to them, whatever their width and their type."""

import pytest
import torch

from llama_herd.model.kernels.elementwise import ACTIVATION_NUMBERS
from llama_herd.model.kernels.exact import ROUNDING, exact_gate, exact_norm, is_rounded
from llama_herd.model.kernels.trials import TriedNorm
from llama_herd.model.pages import PAGE_TOKENS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Of one thread and of many, whole powers of two and others.
COLUMNS = (1, 40, 256, 1_100)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_normalised_added_and_gated(device: torch.device, dtype: torch.dtype, columns: int) -> None:
    from llama_herd.model.kernels.gpu.rows import TritonElementwise

    kernels = TritonElementwise()
    for num_rows in (0, 1, 7):
        x, added = (torch.randn(num_rows, columns, device=device).mul(3).to(dtype) for _ in range(2))
        weight, post_weight = torch.randn(2, columns, device=device)
        assert kernels.takes(x)
        assert is_rounded(kernels.norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))
        for post, exact in ((None, added.double()), (post_weight, exact_norm(added, post_weight, 1e-5))):
            total, normed = kernels.norm_of_sum(x, added, weight, 1e-5, 0.25, post)
            assert is_rounded(total, x.double() + 0.25 * exact, 30.0)
            assert is_rounded(normed, exact_norm(total, weight, 1e-5))
        wide = torch.randn(num_rows, 2 * columns, device=device).mul(3).to(dtype)
        for activation in ACTIVATION_NUMBERS:
            gated = kernels.gate(wide, activation)
            assert gated.shape == (num_rows, columns)
            assert is_rounded(gated, exact_gate(wide, activation))


def test_gates_of_any_width_are_taken(device: torch.device) -> None:
    """Also the 37,888 numbers of Qwen 2 7B."""
    from llama_herd.model.kernels.gpu.rows import TritonElementwise

    wide = torch.randn(1, 2 * 18_944, device=device).bfloat16()
    assert TritonElementwise().takes(wide)
    assert is_rounded(TritonElementwise().gate(wide, "silu"), exact_gate(wide, "silu"))


def test_large_numbers_overflow_nothing(device: torch.device) -> None:
    from llama_herd.model.kernels.gpu.rows import TritonElementwise

    x = torch.full((2, 64), 3e4, dtype=torch.float16, device=device)
    assert TritonElementwise().norm(x, torch.ones(64, device=device), 1e-5).isfinite().all()
    gates = torch.tensor([[-16384.0, 16384.0, 1.0, 2.0]], dtype=torch.bfloat16, device=device)
    for activation in ACTIVATION_NUMBERS:
        assert TritonElementwise().gate(gates, activation).tolist() == [[0.0, 32768.0]]
    endless = torch.tensor([[-1e38, 1e38, 1.0, 2.0]], device=device)
    assert TritonElementwise().gate(endless, "gelu_pytorch_tanh")[0].isfinite().all()


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("heads", [(4, 4, 64), (6, 2, 80), (5, 1, 16), (1, 1, 256)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_are_turned_and_kept(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int], has_norm: bool
) -> None:
    """In a layer that is a part of a larger cache; no other cell is touched."""
    from llama_herd.model.kernels.gpu.rows import TritonRotation

    H, K, D = heads
    cells = torch.tensor([3, 1, 2 * PAGE_TOKENS, PAGE_TOKENS, 7], device=device)
    qkv = torch.randn(len(cells), H + 2 * K, D, device=device).to(dtype)
    cos, sin = torch.randn(2, len(cells), 1, D, device=device)
    storage = torch.full((2, 2, K, 3, PAGE_TOKENS, D), 7.0, dtype=dtype, device=device)
    norm = TriedNorm(torch.randn(H + K, D, device=device), 1e-5) if has_norm else None
    wide = qkv[:, : H + K].double() if norm is None else exact_norm(qkv[:, : H + K], *norm)
    other = wide.roll(D // 2, dims=-1)
    exact, size = wide * cos + other * sin, (wide * cos).abs() + (other * sin).abs()
    values = qkv[:, H + K :].clone()
    rotation = TritonRotation()
    assert rotation.takes(qkv, storage[:, 1])
    rotation(qkv, cos, sin, storage[:, 1], cells, norm)
    by_cell = storage[:, 1].flatten(2, 3)
    keys, found = by_cell[:, :, cells].transpose(1, 2)
    turned = torch.cat((qkv[:, :H], keys), dim=1)
    assert ((turned.double() - exact).abs() <= ROUNDING[dtype] * size).all()
    assert found.equal(values)
    storage[:, 1].view(2, K, -1, D)[:, :, cells] = 7.0
    assert (storage == 7).all()


def test_other_layouts_are_left_to_torch(device: torch.device) -> None:
    from llama_herd.model.kernels.gpu.rows import TritonElementwise, TritonRotation

    kernels, rotation = TritonElementwise(), TritonRotation()
    assert not kernels.takes(torch.ones(4, 8, device=device)[:, ::2])
    assert not kernels.takes(torch.ones(2, 3, 4, device=device))
    assert not kernels.takes(torch.ones(2, 4, device=device, dtype=torch.float64))
    qkv, cached = torch.ones(2, 6, 16, device=device), torch.ones(2, 2, 1, PAGE_TOKENS, 16, device=device)
    assert rotation.takes(qkv, cached)
    assert not rotation.takes(qkv.half(), cached)
    assert not rotation.takes(qkv[:, ::2], cached)
    assert not rotation.takes(qkv, cached[..., :8])
