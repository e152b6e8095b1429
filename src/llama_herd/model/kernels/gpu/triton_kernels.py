"""TritonKernels: products with quantised weights and attention on a card, as far as they are right there.

Shapes: T tokens, N rows (outputs), C columns (inputs).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import torch
import triton
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.elementwise import exact_gate, exact_norm
from llama_herd.model.kernels.gpu.attention import TritonAttention, launches
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.needs import Needs
from llama_herd.model.kernels.gpu.plain import (
    ROUNDING,
    attends_right,
    complaint_of_check,
    is_rounded,
    multiplies_right,
    tokens_of,
)
from llama_herd.model.kernels.gpu.products import TILE_COLUMNS, TILES, product, values
from llama_herd.model.kernels.gpu.rows import TritonElementwise, TritonRotation
from llama_herd.model.kernels.gpu.span_attention import TritonSpanAttention, attending
from llama_herd.model.kernels.rotation import TriedNorm
from llama_herd.model.pages import PAGE_TOKENS, pages_for

#: Lengths of the sequences that are tried, and in how many parts.
_LENGTHS, _SPLITS = (1, 70, 300), (1, 4)
#: Rows of the matrices that are tried: not in whole tiles.
_ROWS = 41


@dataclass(frozen=True, eq=False)
class TritonKernels:
    """The parts of a model that Triton computes on a card; `note` says which, and why not more."""

    note: str
    types: frozenset[GGMLType]
    attention: TritonAttention | None
    device_type: str
    prefill_attention: TritonSpanAttention | None = None
    elementwise: TritonElementwise | None = None
    rotation: TritonRotation | None = None
    tile_rows: int = 1
    draw: ClassVar[None] = None
    has_numbers: ClassVar[bool] = False

    def multiply(self, x: Tensor, parts: BlockParts) -> Tensor:
        """x (T, C) times a matrix in parts: (T, N) of its type."""
        return product(x, parts)

    def values(self, parts: BlockParts, dtype: torch.dtype) -> Tensor:
        """A matrix in parts as numbers (N, C)."""
        return values(parts, dtype)


def checked(needs: Needs, device: torch.device, num_processors: int) -> TritonKernels:
    """The kernels that compute right what a model needs; all that it will run is compiled then.

    Raises torch.AcceleratorError when one of them has broken the context, which nothing mends.
    """
    attention = TritonAttention(num_processors)
    checks = {
        "attention": partial(_attends_right, needs, device, _in_parts),
        "prompts": partial(_attends_right, needs, device, _in_spans),
        "rows": partial(_does_rows_right, needs, device),
        "RoPE": partial(_turns_right, needs, device),
    }
    types = sorted({type for type, _ in needs.widths} & PARTED_TYPES)
    for type in types:
        checks[type.name] = partial(_multiplies_right, needs, device, type)
    complaints = {name: complaint_of_check(check, device) for name, check in checks.items()}
    right = [name for name, complaint in complaints.items() if not complaint]
    wrong = "; ".join(f"not for {name}: {complaint}" for name, complaint in complaints.items() if complaint)
    note = f"triton {triton.__version__} for {', '.join(right)}" if right else "none"
    return TritonKernels(
        "; ".join(filter(None, (note, wrong))),
        frozenset(type for type in types if type.name in right),
        attention if "attention" in right else None,
        device.type,
        TritonSpanAttention() if "prompts" in right else None,
        elementwise=TritonElementwise() if "rows" in right else None,
        rotation=TritonRotation() if "RoPE" in right else None,
    )


#: Keys and values that are tried, and which tokens see which of them.
_Tried: TypeAlias = tuple[Tensor, Tensor, Seen]


def _attends_right(
    needs: Needs,
    device: torch.device,
    attend: Callable[[_Tried, Scoring], Iterator[tuple[Tensor, Seen]]],
) -> bool:
    """Whether rows of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    counts = [pages_for(length) for length in _LENGTHS]
    tables = torch.tensor([sum(counts[:i]) for i in range(len(counts))])
    pages = torch.randperm(sum(counts))
    shape = (2, needs.num_kv_heads, len(pages), PAGE_TOKENS, needs.head_dim)
    cached = torch.full(shape, torch.nan, dtype=needs.dtype)
    for table, length in zip(tables.tolist(), _LENGTHS, strict=True):
        at = torch.arange(length)
        numbers = torch.randn(2, needs.num_kv_heads, length, needs.head_dim)
        cached[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers.to(needs.dtype)
    q = torch.randn(sum(_LENGTHS), needs.num_heads, needs.head_dim).to(device, needs.dtype)
    cached = cached.to(device)
    last = Seen(
        *(part.to(device) for part in (torch.arange(len(counts)), torch.tensor(_LENGTHS), tables, pages))
    )
    return all(
        attends_right(y[seen.rows], q, cached, seen, scoring)
        for scoring in (Scoring(needs.scale, window, needs.cap) for window in needs.windows)
        for y, seen in attend((q, cached, last), scoring)
    )


def _in_parts(tried: _Tried, scoring: Scoring) -> Iterator[tuple[Tensor, Seen]]:
    """What the last token of each sequence attends to, alone and in parts."""
    q, cached, last = tried
    for num_splits in _SPLITS:
        y = torch.empty_like(q)
        for launch in launches(q, cached, last, y, num_splits, scoring):
            launch()
        yield y, last


def _in_spans(tried: _Tried, scoring: Scoring) -> Iterator[tuple[Tensor, Seen]]:
    """What spans attend to: of each sequence about its second half."""
    q, cached, last = tried
    num_tokens = (last.num_keys + 1) // 2
    first = Seen(num_tokens.cumsum(0) - num_tokens, last.num_keys + 1 - num_tokens, last.tables, last.pages)
    spans = SeenSpans(first, num_tokens, max(_LENGTHS))
    y = torch.empty_like(q)
    attending(q, cached, spans, y, scoring)()
    yield y, tokens_of(spans)


def _widths(needs: Needs, type: GGMLType) -> list[int]:
    """Columns of matrices of a type, one of each kind for which a kernel is compiled by itself."""
    block_values, _ = GGML_QUANT_SIZES[type]
    found: dict[tuple[bool, ...], int] = {}
    for width in sorted(columns for known, columns in needs.widths if known is type):
        num_blocks = width // block_values
        tile_blocks = max(1, TILE_COLUMNS // block_values)
        found.setdefault((num_blocks == 1, num_blocks % 16 == 0, num_blocks % tile_blocks == 0), width)
    return list(found.values())


def _multiplies_right(needs: Needs, device: torch.device, type: GGMLType) -> bool:
    """Whether random blocks are multiplied as the values that stand in them, by few tokens and by many."""
    return all(_multiplies_width_right(type, width, needs.dtype, device) for width in _widths(needs, type))


def _multiplies_width_right(type: GGMLType, columns: int, dtype: torch.dtype, device: torch.device) -> bool:
    parts = random_parts(type, _ROWS, columns, device)
    matrix = dequantize(parts.blocks(), type)
    if not values(parts, dtype).equal(matrix.to(dtype)):
        return False
    most = max(tile.num_tokens for tile in TILES)
    x = torch.randn(most + 1, columns, device=device).to(dtype)
    counts = (1, *(tile.num_tokens for tile in TILES), most + 1)
    return all(multiplies_right(product(x[:count], parts), x[:count], matrix) for count in counts)


def _does_rows_right(needs: Needs, device: torch.device) -> bool:
    """Whether random rows are normalised, added to and gated as in float64, in the model's own way."""
    kernels = TritonElementwise()
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


def _turns_right(needs: Needs, device: torch.device) -> bool:
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
    TritonRotation()(qkv, cos, sin, cached, cells, norm)
    by_cell = cached.flatten(2, 3)  # (2, K, N, D)
    keys, found = by_cell[:, :, cells].transpose(1, 2)  # (T, K, D) each
    turned = torch.cat((qkv[:, :H], keys), dim=1).double()
    by_cell[:, :, cells] = 7.0
    is_turned = bool(((turned - exact).abs() <= ROUNDING[needs.dtype] * size).all())
    return is_turned and found.equal(given) and bool((cached == 7).all())


def random_parts(type: GGMLType, num_rows: int, columns: int, device: torch.device | str) -> BlockParts:
    """Random blocks, but that their float16 numbers are 2**-7 to 2**-6 in size."""
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    blocks = torch.randint(0, 256, (num_rows, columns // block_values * block_bytes), dtype=torch.uint8)
    parts = BlockParts.empty(type, num_rows, columns, device)
    parts.write(0, blocks.to(device))
    high = parts.parts["halves"].view(torch.uint8)[:, 1::2]
    high.copy_(high & 0x83 | 0x20)
    return parts
