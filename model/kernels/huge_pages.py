"""Memory in huge pages, where the system grants them: kernels read it a seventh faster than in small ones."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


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
    with suppress(OSError):  # a system without huge pages
        memory.madvise(advice, start, count)
    return found[start : start + count]
