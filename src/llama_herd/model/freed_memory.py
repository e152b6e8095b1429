"""Memory that is free, and that the allocator keeps for what may come."""

import ctypes


def give_back() -> None:
    """Give it to the system, where the C library can.

    After a model is loaded it is tens of MB: what several threads took to turn rows and lay them out.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))
