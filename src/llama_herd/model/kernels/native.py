"""Kernels: products with quantised weights as they are stored, by a native library of this package.

A library is loaded for the best instruction set that this machine grants and that was built. Whatever is in
its way, there are then no kernels, and a note says why: all models run in plain torch too.

Shapes: T tokens, N rows (outputs), C columns (inputs).
"""

import ctypes
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.errors import BadInput
from llama_herd.model.kernels.attention import (
    Attention,
    PrefillAttention,
    load_attention,
    load_prefill_attention,
)
from llama_herd.model.kernels.block_types import HALVES, NUMBERS, TILE_ROWS, TILED_TYPES
from llama_herd.model.kernels.build import best_library
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.draw import Draw, load_draw
from llama_herd.model.kernels.elementwise import Elementwise, load_elementwise
from llama_herd.model.kernels.instruction_set import InstructionSet
from llama_herd.model.kernels.library import NUMBER, POINTER, LibraryPart, members
from llama_herd.model.kernels.rotation import Rotation, load_rotation
from llama_herd.model.kernels.tiles import block_size, blocks_of, random_tiles
from llama_herd.model.kernels.unloaded import UnloadedKernels, unusable


class Kernel(IntEnum):
    """One way to multiply, by its number in the library."""

    FLOAT32 = 0  # all arithmetic in float32
    INT8 = 1  # inputs as bytes, with a scale for each 32 of them; the fastest for few tokens
    TILES = 2  # inputs and weights as bfloat16, by AMX; the fastest for many tokens
    NUMBERS = 3  # plain numbers, which are bfloat16 as inputs are: their one way


#: From so many tokens on TILES is as fast as INT8, or faster, for every type.
MANY_TOKENS = 13


#: What sums in float32 may be away from sums in float64, in parts of the sum of their terms' sizes.
FLOAT32_ROUNDING = 1e-6
#: What rounding a number to bfloat16 changes at most, in parts of it.
BFLOAT16_ROUNDING = 2**-8
#: What cutting a weight to bfloat16 changes at most (`multiply_tiles.h`), in parts of it.
CUT = 4 / 3 * BFLOAT16_ROUNDING
#: What rounding an input to a byte changes at most, in parts of the largest of its 32.
INT8_ROUNDING = 0.51 / 127


@dataclass(frozen=True, eq=False, kw_only=True)
class Kernels(LibraryPart):
    """The parts of a model that a native library computes; `note` says which, and what it computes wrong."""

    note: str
    types: frozenset[GGMLType]
    kernels: frozenset[Kernel]  # the ways to multiply that it has
    has_numbers: bool = False  # whether it multiplies plain numbers in bfloat16 too
    attention: Attention | None = None
    prefill_attention: PrefillAttention | None = None
    elementwise: Elementwise | None = None
    rotation: Rotation | None = None
    draw: Draw | None = None
    device_type: ClassVar[str] = "cpu"
    tile_rows: ClassVar[int] = TILE_ROWS  # rows of a matrix come in so many

    def with_threads(self, num_threads: int) -> Self:
        parts: dict[str, Any] = {
            name: replace(part, num_threads=num_threads)
            for name, part in vars(self).items()
            if isinstance(part, LibraryPart)
        }
        return replace(self, num_threads=num_threads, **parts)

    def kernel_for(self, dtype: torch.dtype, num_tokens: int) -> Kernel:
        """The fastest way for so many tokens that is about as exact as their type."""
        if dtype is torch.bfloat16 and num_tokens >= MANY_TOKENS and Kernel.TILES in self.kernels:
            return Kernel.TILES
        if dtype is torch.bfloat16 and Kernel.INT8 in self.kernels:
            return Kernel.INT8
        return Kernel.FLOAT32

    def lay_out(self, blocks: Tensor, tiles: Tensor, type: GGMLType) -> None:
        """Write rows of blocks (N, bytes of a row) into the first of these tiles; N is a multiple of 16."""
        blocks, at = blocks.contiguous(), HALVES[type]
        num_rows, row_bytes = blocks.shape
        if num_rows % TILE_ROWS or blocks.nbytes > tiles.nbytes or not tiles.is_contiguous():
            raise ValueError(
                f"{num_rows} rows of {row_bytes} bytes do not go into {tuple(tiles.shape)} tiles"
            )
        block_bytes = block_size(type)[1]
        job = _Blocks(blocks.data_ptr(), num_rows, row_bytes, block_bytes, at.start, at.stop - at.start)
        self.library.herd_lay_out(ctypes.byref(job), ctypes.c_void_p(tiles.data_ptr()))

    def multiply(
        self,
        x: Tensor,
        tiles: Tensor,
        type: GGMLType,
        num_rows: int,
        kernel: Kernel | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """x (T, C), float32 or bfloat16, times the first rows of a matrix in tiles: (T, N).

        `dtype` is float32 or bfloat16 too; None: that of x.
        """
        x, columns = x.contiguous(), tiles.shape[1] * block_size(type)[0]
        if x.dtype not in (torch.float32, torch.bfloat16) or x.shape[1] != columns:
            raise ValueError(f"no kernel for x of {tuple(x.shape)} {x.dtype} and {columns} columns")
        y = x.new_empty(len(x), num_rows, dtype=dtype or x.dtype)
        is_done = self.library.herd_multiply(
            int(type),
            self.kernel_for(x.dtype, len(x)) if kernel is None else kernel,
            tiles.data_ptr(),
            num_rows,
            columns,
            x.data_ptr(),
            y.data_ptr(),
            len(x),
            x.dtype is torch.bfloat16,
            y.dtype is torch.bfloat16,
            self.threads,
        )
        if not is_done:
            raise torch.OutOfMemoryError(f"native kernel for {type.name}: no memory to work in")
        return y

    def look_up(self, tiles: Tensor, ids: Tensor, type: GGMLType, dtype: torch.dtype) -> Tensor:
        """The rows of a matrix in tiles that have these numbers (T,): (T, C), float32 or bfloat16.

        Raises IndexError for a number beyond the tiles' rows.
        """
        ids, columns = ids.contiguous(), tiles.shape[1] * block_size(type)[0]
        y = torch.empty(len(ids), columns, dtype=dtype)
        job = _LookUp(
            *(tiles.data_ptr(), len(tiles) * TILE_ROWS, columns),
            *(ids.data_ptr(), y.data_ptr(), len(ids), dtype is torch.bfloat16),
        )
        if not self.library.herd_look_up(int(type), ctypes.byref(job), self.threads):
            raise IndexError(f"rows {ids.tolist()} of {len(tiles) * TILE_ROWS} in tiles of {type.name}")
        return y


class _Blocks(ctypes.Structure):
    """herd::Blocks."""

    _fields_ = members((POINTER, "rows"), (NUMBER, "num_rows row_bytes block_bytes halves_at halves_bytes"))


class _LookUp(ctypes.Structure):
    """herd::LookUp, which says what each is."""

    _fields_ = members(
        (POINTER, "tiles"),
        (NUMBER, "rows columns"),
        (POINTER, "ids y"),
        (NUMBER, "count"),
        (ctypes.c_bool, "is_bfloat16"),
    )


def load_kernels(folder: Path) -> Kernels | UnloadedKernels:
    """The kernels of the best library in this folder that this machine can run and that computes right."""
    try:
        best = best_library(folder)
        kernels = load_library(best.set, best.path)
    except (OSError, BadInput) as error:
        return unusable(error)
    return replace(kernels, note=best.noted(kernels.note))


def load_library(set: InstructionSet, path: Path) -> Kernels:
    """The kernels of one library, of the types that it multiplies as torch does.

    Raises BadInput when this machine lacks the set, OSError when the file is no library.
    """
    if set.complaint:
        raise BadInput(f"{set.name}: {set.complaint}")
    library = ctypes.CDLL(str(path))
    library.herd_kernels.argtypes = []
    library.herd_lay_out.restype = None
    library.herd_multiply.restype = ctypes.c_bool
    library.herd_multiply.argtypes = [
        *(ctypes.c_int, ctypes.c_int, POINTER, NUMBER, NUMBER),  # type, kernel, tiles, rows, columns
        *(POINTER, POINTER, NUMBER),  # x, y, tokens
        *(ctypes.c_bool, ctypes.c_bool, ctypes.c_int),  # x is bfloat16, y is, threads
    ]
    library.herd_look_up.restype = ctypes.c_bool
    library.herd_look_up.argtypes = [ctypes.c_int, POINTER, ctypes.c_int]
    found = library.herd_kernels()
    ways = frozenset(kernel for kernel in Kernel if found >> kernel & 1) - {Kernel.NUMBERS}
    tried = Kernels(library, note="", types=TILED_TYPES, kernels=ways)
    kernels = replace(
        tried,
        types=frozenset(type for type in TILED_TYPES if _is_right(tried, type, ways)),
        has_numbers=_is_right(tried, NUMBERS, {Kernel.NUMBERS}),
        attention=load_attention(library),
        prefill_attention=load_prefill_attention(library) if set.attends_to_prompts else None,
        elementwise=load_elementwise(library),
        rotation=load_rotation(library),
        draw=load_draw(library),
    )
    return replace(kernels, note=_note(set, kernels))


def _note(set: InstructionSet, kernels: Kernels) -> str:
    """Which parts of a library compute right, and which wrong."""
    found_right = {
        **{type.name: type in kernels.types for type in sorted(TILED_TYPES, key=lambda type: type.name)},
        "bfloat16": kernels.has_numbers,
        "attention": kernels.attention is not None,
        **({"attention of prompts": bool(kernels.prefill_attention)} if set.attends_to_prompts else {}),
        "RoPE": kernels.rotation is not None,
        "norms and gates": kernels.elementwise is not None,
    }
    names, wrong = (
        ", ".join(name for name, is_right in found_right.items() if is_right == wanted)
        for wanted in (True, False)
    )
    return f"{set.name} for {names or 'nothing'}{f', which computes {wrong} wrong' if wrong else ''}"


def _is_right(kernels: Kernels, type: GGMLType, ways: Collection[Kernel]) -> bool:
    """Whether it lays out blocks, and multiplies random numbers in all these ways as torch does."""
    num_rows, columns = 41, 768
    tiles = random_tiles(num_rows, columns, type)
    blocks = blocks_of(tiles, torch.arange(TILE_ROWS * len(tiles)), type)
    laid_out = torch.empty_like(tiles)
    kernels.lay_out(blocks, laid_out, type)
    if not torch.equal(laid_out, tiles):
        return False
    matrix = dequantize(blocks[:num_rows], type)
    ids = torch.arange(num_rows)
    if not kernels.look_up(tiles, ids, type, torch.float32).equal(matrix):
        return False
    x = torch.randn(37, columns)
    inputs = [x[:1].bfloat16(), x.bfloat16(), *([] if type is NUMBERS else [x[:1], x])]
    return all(
        is_close(kernels.multiply(rows, tiles, type, num_rows, kernel), rows, matrix, kernel)
        for kernel in ways
        for rows in inputs
    )


def is_close(y: Tensor, x: Tensor, matrix: Tensor, kernel: Kernel) -> bool:
    """Whether y (T, N) is x (T, C) @ matrix.T (N, C) but for what this kernel may round."""
    exact = x.double() @ matrix.double().T
    allowed = FLOAT32_ROUNDING * (x.double().abs() @ matrix.double().abs().T)
    if kernel is Kernel.TILES:
        allowed = allowed + CUT * (x.double().abs() @ matrix.double().abs().T)
    if kernel is Kernel.INT8:
        largest = x.double().abs().view(len(x), x.shape[1] // 32, 32).amax(dim=-1)  # (T, C / 32)
        sizes = matrix.double().abs().reshape(len(matrix), -1, 32).sum(dim=-1)  # (N, C / 32)
        allowed = allowed + INT8_ROUNDING * (largest @ sizes.T)
    if y.dtype is torch.bfloat16:
        allowed = allowed + BFLOAT16_ROUNDING * exact.abs()
    return bool(((y.double() - exact).abs() <= allowed).all())
