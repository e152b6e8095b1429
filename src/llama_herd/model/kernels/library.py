"""What all parts of a native library have in common."""

import ctypes
from dataclasses import dataclass

import torch

#: The types of numbers that a library is made for.
DTYPES = (torch.float32, torch.bfloat16)

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64


def members(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    """The members of a C++ struct, in order: types, each with the names that have it."""
    return [(name, kind) for kind, names in groups for name in names.split()]


@dataclass(frozen=True, eq=False)
class LibraryPart:
    """Some of what a native library computes."""

    library: ctypes.CDLL
    num_threads: int = 0  # 0: as many as torch has

    @property
    def threads(self) -> int:
        return self.num_threads or torch.get_num_threads()
