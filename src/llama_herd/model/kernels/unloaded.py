"""Kernels that compute nothing: there are none, or they are not loaded.

A worker loads kernels and tries whether they compute right. Whoever only plans its memory needs no torch.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from gguf import GGMLQuantizationType as GGMLType

from llama_herd.errors import BadInput
from llama_herd.model.kernels.block_types import TILE_ROWS, TILED_TYPES
from llama_herd.model.kernels.build import best_library


@dataclass(frozen=True)
class UnloadedKernels:
    """Which types of blocks would be laid out for kernels, and how; `note` says for which, or why none."""

    note: str
    types: frozenset[GGMLType] = frozenset()
    tile_rows: int = 1
    has_numbers: bool = False  # whether plain numbers in bfloat16 would be laid out too
    device_type: ClassVar[str] = "cpu"
    attention: ClassVar[None] = None
    prefill_attention: ClassVar[None] = None
    elementwise: ClassVar[None] = None
    rotation: ClassVar[None] = None
    draw: ClassVar[None] = None

    def with_threads(self, num_threads: int) -> Self:
        return self


def no_kernels(reason: str) -> UnloadedKernels:
    return UnloadedKernels(f"none: {reason}")


def unusable(error: OSError | BadInput) -> UnloadedKernels:
    """None, since this has come of looking for them; what the system says has no fix of its own."""
    fix = ". Fix: name a folder of your own in HERD_KERNELS_DIR" if isinstance(error, OSError) else ""
    return no_kernels(f"{error}{fix}")


NO_KERNELS = no_kernels("not asked for")


def built_kernels(folder: Path) -> UnloadedKernels:
    """The kernels that a worker finds in this folder, taken as right."""
    try:
        best = best_library(folder)
        ctypes.CDLL(str(best.path))
    except (OSError, BadInput) as error:
        return unusable(error)
    names = ", ".join(sorted(type.name for type in TILED_TYPES))
    note = best.noted(f"{best.set.name} for {names}, if a worker finds them right")
    return UnloadedKernels(note, TILED_TYPES, TILE_ROWS, has_numbers=True)
