"""TritonKernels: products with quantised weights and attention on a card, as far as they are right there.

Shapes: T tokens, N rows (outputs), C columns (inputs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import triton
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.gpu.attention import TritonAttention, launches
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.needs import Needs
from llama_herd.model.kernels.gpu.plain import attends_right, multiplies_right
from llama_herd.model.kernels.gpu.products import TILES, product, values
from llama_herd.model.kernels.gpu.varlen import VarlenAttention
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.seen import Seen

#: Lengths of the sequences that are tried, and in how many parts.
_LENGTHS, _SPLITS = (1, 70, 300), (1, 4)
#: The matrix that is tried: not in whole tiles of rows.
_ROWS, _COLUMNS = 41, 768


@dataclass(frozen=True, eq=False)
class TritonKernels:
    """What is multiplied and attended by Triton; `note` says what and why not more."""

    note: str
    types: frozenset[GGMLType]
    attention: TritonAttention | None
    device_type: str
    packed: VarlenAttention | None = None  # of prompts
    tile_rows: int = 1
    prefill_attention: ClassVar[None] = None
    elementwise: ClassVar[None] = None
    rotation: ClassVar[None] = None
    draw: ClassVar[None] = None

    def multiply(self, x: Tensor, parts: BlockParts) -> Tensor:
        """x (T, C) times a matrix in parts: (T, N) of its type."""
        return product(x, parts)

    def values(self, parts: BlockParts, dtype: torch.dtype) -> Tensor:
        """A matrix in parts as numbers (N, C)."""
        return values(parts, dtype)


def checked(needs: Needs, device: torch.device, num_processors: int) -> TritonKernels:
    """The kernels that compute right what a model needs; all that it will run is compiled then."""
    attention = TritonAttention(num_processors)
    checks: dict[str, Callable[[], bool]] = {"attention": partial(_attends_right, needs, device)}
    for type in sorted(needs.types & PARTED_TYPES):
        checks[type.name] = partial(_multiplies_right, type, needs.dtype, device)
    complaints = {name: _complaint(check) for name, check in checks.items()}
    right = [name for name, complaint in complaints.items() if not complaint]
    wrong = "; ".join(f"not for {name}: {complaint}" for name, complaint in complaints.items() if complaint)
    note = f"triton {triton.__version__} for {', '.join(right)}" if right else "none"
    return TritonKernels(
        "; ".join(filter(None, (note, wrong))),
        frozenset(type for type in needs.types & PARTED_TYPES if type.name in right),
        attention if "attention" in right else None,
        device.type,
    )


def _complaint(check: Callable[[], bool]) -> str:
    """Why a kernel cannot be used; empty if it can."""
    try:
        return "" if check() else "it computes wrong"
    except Exception as error:  # whatever a compiler or a driver may raise: the plain path is there
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"


def _attends_right(needs: Needs, device: torch.device) -> bool:
    """Whether rows of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    counts = [pages_for(length) for length in _LENGTHS]
    tables = torch.tensor([sum(counts[:i]) for i in range(len(counts))])
    seen = Seen(torch.arange(len(counts)), torch.tensor(_LENGTHS), tables, torch.randperm(sum(counts)))
    shape = (2, needs.num_kv_heads, len(seen.pages), PAGE_TOKENS, needs.head_dim)
    cached = torch.full(shape, torch.nan, dtype=needs.dtype)
    for table, length in zip(tables.tolist(), _LENGTHS, strict=True):
        at = torch.arange(length)
        numbers = torch.randn(2, needs.num_kv_heads, length, needs.head_dim)
        cached[:, :, seen.pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers.to(needs.dtype)
    q = torch.randn(len(counts), needs.num_heads, needs.head_dim).to(device, needs.dtype)
    cached = cached.to(device)
    seen = Seen(*(part.to(device) for part in (seen.rows, seen.num_keys, seen.tables, seen.pages)))
    for window in needs.windows:
        for num_splits in _SPLITS:
            y = torch.empty_like(q)
            for launch in launches(q, cached, seen, y, num_splits, needs.scale, window, needs.cap):
                launch()
            if not attends_right(y, q, cached, seen, scale=needs.scale, window=window, cap=needs.cap):
                return False
    return True


def _multiplies_right(type: GGMLType, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether random blocks are multiplied as the values that stand in them, by few tokens and by many."""
    parts = random_parts(type, _ROWS, _COLUMNS, device)
    matrix = dequantize(parts.blocks(), type)
    if not values(parts, dtype).equal(matrix.to(dtype)):
        return False
    most = max(tile.num_tokens for tile in TILES)
    x = torch.randn(most + 1, _COLUMNS, device=device).to(dtype)
    counts = (1, *(tile.num_tokens for tile in TILES), most + 1)
    return all(multiplies_right(product(x[:count], parts), x[:count], matrix) for count in counts)


def random_parts(type: GGMLType, num_rows: int, columns: int, device: torch.device | str) -> BlockParts:
    """Random blocks, but that their float16 numbers are 2**-7 to 2**-6 in size."""
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    blocks = torch.randint(0, 256, (num_rows, columns // block_values * block_bytes), dtype=torch.uint8)
    parts = BlockParts.empty(type, num_rows, columns, device)
    parts.write(0, blocks.to(device))
    high = parts.parts["halves"].view(torch.uint8)[:, 1::2]
    high.copy_(high & 0x83 | 0x20)
    return parts
