"""Trials of kernels: whether they are right for random numbers, in the shapes that a model needs.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim, N cells of a cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.exact import (
    ROUNDING,
    attends_right,
    exact_gate,
    exact_norm,
    is_rounded,
    tokens_of,
)
from llama_herd.model.pages import PAGE_TOKENS, pages_for

if TYPE_CHECKING:
    from llama_herd.model.kernels.elementwise import RowKernels
    from llama_herd.model.kernels.rotation import RotationKernel

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Needs:
    """What a model asks of kernels: matrices to multiply by, and the shapes of all else."""

    dtype: torch.dtype
    widths: frozenset[tuple[GGMLType, int]]  # types of matrices, and their columns
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windows: frozenset[int]  # of the layers; 0: none
    cap: float
    hidden_size: int
    ffn_size: int
    activation: str
    qk_norm: bool
    post_norms: bool


#: What kernels that are made for all models are tried with: no size is one of whole vectors.
TRIED = Needs(
    dtype=torch.float32,
    widths=frozenset(),
    num_heads=6,
    num_kv_heads=2,
    head_dim=84,
    scale=0.1,
    windows=frozenset({0}),
    cap=0.0,
    hidden_size=310,
    ffn_size=155,
    activation="silu",
    qk_norm=False,
    post_norms=False,
)


class TriedNorm(NamedTuple):
    """A `HeadNorm` to try kernels with."""

    weight: Tensor
    eps: float


def attention_is_right(
    attend: Callable[[Tensor, Tensor, SeenSpans, Tensor, Scoring], None],
    needs: Needs,
    spans: Sequence[tuple[int, int]],
    device: torch.device = CPU,
) -> bool:
    """Whether spans, (start, tokens), attend as the formula says, in a cache of NaN but for what they see."""
    K, D = needs.num_kv_heads, needs.head_dim
    starts, counts = zip(*spans, strict=True)
    *tables, num_pages = accumulate((pages_for(start + count) for start, count in spans), initial=0)
    *rows, num_rows = accumulate(counts, initial=0)
    pages = torch.randperm(num_pages)
    cached = torch.full((2, K, num_pages, PAGE_TOKENS, D), torch.nan, dtype=needs.dtype)
    for table, (start, count) in zip(tables, spans, strict=True):
        at = torch.arange(start + count)
        numbers = torch.randn(2, K, len(at), D).to(needs.dtype)
        cached[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers
    cached, q = cached.to(device), torch.randn(num_rows, needs.num_heads, D).to(device, needs.dtype)
    seen = (rows, [start + 1 for start in starts], tables, pages.tolist())
    first = Seen(*(torch.tensor(part, device=device) for part in seen))
    given = SeenSpans(first, torch.tensor(counts, device=device), max(counts))
    for window in needs.windows:
        scoring, y = Scoring(needs.scale, window, needs.cap), torch.empty_like(q)
        attend(q, cached, given, y, scoring)
        if not attends_right(y, q, cached, tokens_of(given), scoring):
            return False
    return True


def rows_are_right(kernels: "RowKernels", needs: Needs, device: torch.device = CPU) -> bool:
    """Whether random rows are normalised, added to and gated as in float64, in the model's own way."""
    x, added = (torch.randn(3, needs.hidden_size, device=device).mul(3).to(needs.dtype) for _ in range(2))
    weight = torch.randn(needs.hidden_size, device=device)
    gate_up = torch.randn(3, 2 * needs.ffn_size, device=device).mul(3).to(needs.dtype)
    post_weight = weight.flip(0) if needs.post_norms else None
    exact = added.double() if post_weight is None else exact_norm(added, post_weight, 1e-5)
    total, normed = kernels.norm_of_sum(x, added, weight, 1e-5, 0.5, post_weight)
    return (
        is_rounded(kernels.norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))
        and is_rounded(total, x.double() + 0.5 * exact, 6 * float(exact.abs().max()))
        and is_rounded(normed, exact_norm(total, weight, 1e-5))
        and is_rounded(kernels.gate(gate_up, needs.activation), exact_gate(gate_up, needs.activation))
    )


def rotation_is_right(rotation: "RotationKernel", needs: Needs, device: torch.device = CPU) -> bool:
    """Whether random numbers are turned as in float64, and put where they belong and nowhere else."""
    H, K, D = needs.num_heads, needs.num_kv_heads, needs.head_dim
    cells = torch.tensor([3, 1, 2 * PAGE_TOKENS, PAGE_TOKENS, 7], device=device)
    qkv = torch.randn(len(cells), H + 2 * K, D, device=device).to(needs.dtype)
    cos, sin = torch.randn(2, len(cells), 1, D, device=device)
    cached = torch.full((2, K, 3, PAGE_TOKENS, D), 7.0, dtype=needs.dtype, device=device)
    norm = TriedNorm(torch.randn(H + K, D, device=device), 1e-5) if needs.qk_norm else None
    wide = qkv[:, : H + K].double() if norm is None else exact_norm(qkv[:, : H + K], *norm)
    exact = wide * cos + wide.roll(D // 2, dims=-1) * sin
    size = wide.abs() * cos.abs() + wide.roll(D // 2, dims=-1).abs() * sin.abs()
    given = qkv[:, H + K :].clone()
    rotation(qkv, cos, sin, cached, cells, norm)
    by_cell = cached.flatten(2, 3)  # (2, K, N, D)
    keys, found = by_cell[:, :, cells].transpose(1, 2)  # (T, K, D) each
    turned = torch.cat((qkv[:, :H], keys), dim=1).double()
    by_cell[:, :, cells] = 7.0
    is_turned = bool(((turned - exact).abs() <= ROUNDING[needs.dtype] * size).all())
    return is_turned and found.equal(given) and bool((cached == 7).all())
