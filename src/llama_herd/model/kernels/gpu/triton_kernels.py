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

from llama_herd.model.attention_inputs import Scoring, SeenSpans
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.exact import multiplies_right
from llama_herd.model.kernels.gpu.attention import TritonAttention, launches
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.products import TILE_COLUMNS, TILES, product, values
from llama_herd.model.kernels.gpu.rows import TritonElementwise, TritonRotation
from llama_herd.model.kernels.gpu.span_attention import TritonSpanAttention
from llama_herd.model.kernels.trials import Needs, attention_is_right, rotation_is_right, rows_are_right

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

    multiply = staticmethod(product)
    values = staticmethod(values)


def checked(needs: Needs, device: torch.device, num_processors: int) -> TritonKernels:
    """The kernels that compute right what a model needs; all that it will run is compiled then.

    Raises torch.AcceleratorError when one of them has broken the context, which nothing mends.
    """
    attention, prompts = TritonAttention(num_processors), TritonSpanAttention()
    rows, rotation = TritonElementwise(), TritonRotation()
    checks: dict[str, Callable[[], bool]] = {
        "attention": lambda: all(_attends_in_parts_right(needs, device, number) for number in (1, 4)),
        "prompts": partial(attention_is_right, prompts, needs, [(0, 1), (35, 35), (150, 150)], device),
        "rows": partial(rows_are_right, rows, needs, device),
        "RoPE": partial(rotation_is_right, rotation, needs, device),
    }
    types = sorted({type for type, _ in needs.widths} & PARTED_TYPES)
    for type in types:
        checks[type.name] = partial(_multiplies_right, needs, device, type)
    complaints = {name: _complaint_of(check, device) for name, check in checks.items()}
    right = [name for name, complaint in complaints.items() if not complaint]
    wrong = "; ".join(f"not for {name}: {complaint}" for name, complaint in complaints.items() if complaint)
    note = f"triton {triton.__version__} for {', '.join(right)}" if right else "none"
    return TritonKernels(
        "; ".join(filter(None, (note, wrong))),
        frozenset(type for type in types if type.name in right),
        attention if "attention" in right else None,
        device.type,
        prompts if "prompts" in right else None,
        elementwise=rows if "rows" in right else None,
        rotation=rotation if "RoPE" in right else None,
    )


def _attends_in_parts_right(needs: Needs, device: torch.device, num_splits: int) -> bool:
    """Whether single tokens attend right in so many parts of their keys."""

    def attend(q: Tensor, cached: Tensor, tokens: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        for launch in launches(q, cached, tokens.first, out, num_splits, scoring):
            launch()

    return attention_is_right(attend, needs, [(0, 1), (69, 1), (299, 1)], device)


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


def _complaint_of(check: Callable[[], bool], device: torch.device) -> str:
    """Why a kernel that is so checked cannot be used; empty if it can."""
    try:
        return "" if check() else "its results are wrong"
    except Exception as error:  # whatever a compiler or a driver may raise: the plain path is there
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where nothing else can run either
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"


def random_parts(type: GGMLType, num_rows: int, columns: int, device: torch.device | str) -> BlockParts:
    """Random blocks, but that their float16 numbers are 2**-7 to 2**-6 in size."""
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    blocks = torch.randint(0, 256, (num_rows, columns // block_values * block_bytes), dtype=torch.uint8)
    parts = BlockParts.empty(type, num_rows, columns, device)
    parts.write(0, blocks.to(device))
    high = parts.parts["halves"].view(torch.uint8)[:, 1::2]
    high.copy_(high & 0x83 | 0x20)
    return parts
