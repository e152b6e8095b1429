"""Much memory that is little: one piece again and again, so that offsets beyond 32 bits cost nothing."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(3 * (ctypes.c_int,)), ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FIXED, _NO_RESERVE, _NOBODY = 0x10, 0x4000, 0


@contextmanager
def repeated(piece: Tensor, count: int) -> Iterator[Tensor]:
    """A tensor of (count, *piece.shape) whose rows are all one and the same memory, whole pages of it.

    It must not be used afterwards.
    """
    size = piece.nbytes
    assert size % mmap.PAGESIZE == 0
    file = os.memfd_create("piece")
    try:
        os.ftruncate(file, size)
        start = _map(None, size * count, _NOBODY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1)
        for number in range(count):
            _map(
                start + number * size, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, file
            )
    finally:
        os.close(file)
    memory = (ctypes.c_uint8 * (size * count)).from_address(start)
    all_pieces = torch.frombuffer(memory, dtype=piece.dtype, count=prod(piece.shape) * count)
    try:
        all_pieces[: piece.numel()] = piece.flatten()
        yield all_pieces.view(count, *piece.shape)
    finally:
        _LIBC.munmap(start, size * count)


def _map(start: int | None, size: int, rights: int, flags: int, file: int) -> int:
    found: int = _LIBC.mmap(start, size, rights, flags, file, 0)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return found
