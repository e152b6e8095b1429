"""Memory in huge pages, where the system grants them: in small ones kernels take up to 1.4 times as long.

In a virtual machine the first touch of huge pages may be dear: 2.5 s a GB, where small ones took 0.5. So
memory is filled in small pages, and moved into huge ones beside the first tokens; a worker takes its first
job when that is done. A system that cannot move it has huge ones from the start.
"""

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from threading import Thread

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20

#: madvise's, from Linux 6.1 on: move this memory into huge pages now.
MADV_COLLAPSE = 25
#: Moved at once: a worker that ends meanwhile waits for no more.
PIECE_BYTES = 16 * HUGE_PAGE_BYTES


def zero_bytes(count: int) -> Tensor:
    """As many zeros of uint8; those that fill no huge page stand in small ones, so no memory is lost."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if count < HUGE_PAGE_BYTES or advice is None:
        return torch.zeros(count, dtype=torch.uint8)
    try:
        memory = mmap.mmap(-1, count + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # torch has the words for it
        return torch.zeros(count, dtype=torch.uint8)
    found = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the memory as long as it lives
    start = -found.data_ptr() % HUGE_PAGE_BYTES
    if not _can_move():
        with suppress(OSError):  # a system without huge pages
            memory.madvise(advice, start, count)
    return found[start : start + count]


def move_into_huge_pages(filled: Sequence[Tensor]) -> Thread:
    """Move memory of `zero_bytes`, beside all else; what finds no huge page stays where it is.

    The thread holds no tensor: one that it freed while the interpreter ends would abort the process. Advice
    on memory that is no longer there changes nothing.
    """
    places = [(memory.data_ptr(), memory.nbytes) for memory in filled]
    thread = Thread(target=_move, args=(places,), name="huge pages", daemon=True)
    thread.start()
    return thread


def _move(places: Sequence[tuple[int, int]]) -> None:
    if not _can_move():
        return
    for start, count in places:
        num_bytes = count // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        for at in range(0, num_bytes, PIECE_BYTES):
            _libc().madvise(start + at, min(PIECE_BYTES, num_bytes - at), MADV_COLLAPSE)


@cache
def _can_move() -> bool:
    """Whether the system knows how: of no bytes it accepts any advice that it knows."""
    return bool(_libc().madvise(None, 0, MADV_COLLAPSE) == 0)


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)  # lets the interpreter's lock go, unlike mmap's own madvise
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
