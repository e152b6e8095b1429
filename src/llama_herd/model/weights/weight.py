"""A model's weight as its file holds it: rows of blocks, values not yet touched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

if TYPE_CHECKING:
    from torch import Tensor


class Rows(Protocol):
    """Rows of blocks of uint8: a tensor, or what is still to be read from a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return some of the rows: (rows, bytes of a row)."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix or vector of `type`, in `rows` of blocks; a vector is one row."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]  # of the values: (rows, columns) or (values,)
    rows: Rows

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        block_values, block_bytes = GGML_QUANT_SIZES[self.type]
        return int(math.prod(self.shape) // block_values * block_bytes)

    @property
    def blocks(self) -> Tensor:
        """All rows at once: uint8 (rows, bytes of a row)."""
        return self.rows[:]
