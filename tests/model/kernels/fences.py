"""Tensors that border on memory which nobody may touch: who reads or writes beyond one ends the process.

Sanitizers see what a compiler's own loads and stores touch, but not the masked ones of vectors; a fence sees
all.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

Side = Literal["before", "behind"]
SIDES: tuple[Side, ...] = ("before", "behind")

_NOBODY = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


def empty(shape: tuple[int, ...], dtype: torch.dtype, side: Side) -> Tensor:
    """One whose first byte stands behind a fence, or whose last byte stands before one. It is of zeros."""
    page, num_bytes = mmap.PAGESIZE, prod(shape) * dtype.itemsize
    if not num_bytes:
        return torch.empty(shape, dtype=dtype)
    size = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (start, start + page + size):
        if _LIBC.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), _NOBODY):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page if side == "before" else page + size - num_bytes
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=offset).view(shape)


def fenced(tensor: Tensor, side: Side) -> Tensor:
    """A copy of one, contiguous."""
    return empty(tuple(tensor.shape), tensor.dtype, side).copy_(tensor)


@contextmanager
def fenced_outputs(side: Side) -> Iterator[None]:
    """Meanwhile what torch makes for a kernel to write in stands between fences too."""

    def new_empty(self: Tensor, *size: Any, dtype: torch.dtype | None = None) -> Tensor:
        return empty(tuple(torch.Size(*size) if len(size) == 1 else size), dtype or self.dtype, side)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "new_empty", new_empty)
        patch.setattr(torch, "empty_like", lambda x: empty(tuple(x.shape), x.dtype, side))
        yield


def between_fences(call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What a call gives for these inputs, and to the bit also where it can touch nothing else."""
    found = call(*(one.clone() for one in inputs))
    for side in SIDES:
        with fenced_outputs(side):
            again = call(*(fenced(one, side) for one in inputs))
        assert again.flatten().view(torch.uint8).equal(found.flatten().view(torch.uint8))
    return found
