"""The most memory that Python's objects take at once."""

import tracemalloc
from collections.abc import Callable


def peak_bytes(act: Callable[[], object]) -> int:
    """Most bytes that the process allocates meanwhile: the least of three times, as other threads act."""
    return min(_peak_bytes(act) for _ in range(3))


def _peak_bytes(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
