"""BlockParts: the blocks of a matrix taken apart by what they hold, each part in rows of its own.

A GPU reads 16 bytes at once only at multiples of 16, where blocks of 18, 34 or 210 bytes do not begin. Taken
apart, each row of values does. Blocks of Q4_K, of 144 bytes, are taken apart too, so that one form of kernel
serves all types. No byte is added or lost.

Shapes: N rows of the matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

#: The parts of a block in order: the bytes of each, and the type of the numbers in it.
_PARTS: Mapping[GGMLType, Mapping[str, tuple[slice, torch.dtype]]] = {
    GGMLType.Q8_0: {"halves": (slice(0, 2), torch.float16), "values": (slice(2, 34), torch.int8)},
    GGMLType.Q4_0: {"halves": (slice(0, 2), torch.float16), "values": (slice(2, 18), torch.uint8)},
    GGMLType.Q4_K: {
        "halves": (slice(0, 4), torch.float16),
        "scales": (slice(4, 16), torch.uint8),
        "values": (slice(16, 144), torch.uint8),
    },
    GGMLType.Q6_K: {
        "values": (slice(0, 128), torch.uint8),
        "high": (slice(128, 192), torch.uint8),
        "scales": (slice(192, 208), torch.int8),
        "halves": (slice(208, 210), torch.float16),
    },
}
#: The types whose blocks can be taken apart.
PARTED_TYPES = frozenset(_PARTS)


@dataclass(frozen=True, eq=False)
class BlockParts:
    """Rows of blocks of one type, in parts."""

    type: GGMLType
    num_blocks: int  # of a row
    parts: Mapping[str, Tensor]  # (N, numbers of a row) each

    @classmethod
    def empty(cls, type: GGMLType, num_rows: int, columns: int, device: torch.device | str) -> Self:
        """Allocate parts for `num_rows` rows of so many columns. They hold nothing yet."""
        num_blocks = columns // GGML_QUANT_SIZES[type][0]
        parts = {
            name: torch.empty(
                num_rows, num_blocks * (at.stop - at.start) // dtype.itemsize, dtype=dtype, device=device
            )
            for name, (at, dtype) in _PARTS[type].items()
        }
        return cls(type, num_blocks, parts)

    @property
    def num_rows(self) -> int:
        return len(self.parts["values"])

    @property
    def columns(self) -> int:
        """Values of a row."""
        return self.num_blocks * int(GGML_QUANT_SIZES[self.type][0])

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def write(self, row: int, blocks: Tensor) -> None:
        """Take rows of blocks (any, bytes of a row) apart, from `row` on."""
        by_block = blocks.view(len(blocks), self.num_blocks, -1)
        for name, (at, _) in _PARTS[self.type].items():
            rows = self.parts[name][row : row + len(blocks)].view(torch.uint8)
            rows.view(len(blocks), self.num_blocks, -1).copy_(by_block[..., at])

    def rows(self, rows: slice | Tensor) -> Self:
        """The parts of these rows alone."""
        return type(self)(self.type, self.num_blocks, {name: part[rows] for name, part in self.parts.items()})

    def blocks(self) -> Tensor:
        """The blocks as their file has them: uint8 (N, bytes of a row)."""
        parts = [
            self.parts[name].contiguous().view(torch.uint8).view(self.num_rows, self.num_blocks, -1)
            for name in _PARTS[self.type]
        ]
        return torch.cat(parts, dim=-1).flatten(1)
