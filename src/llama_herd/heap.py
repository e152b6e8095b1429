"""Memory that this process has let go."""

import ctypes


def trim_heap() -> None:
    """Give memory that is free to the system, which the allocator would keep; where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))
