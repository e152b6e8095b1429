"""What is freed below something that stays goes back to the system."""

import sys

import psutil
import pytest

from llama_herd.model.loader import trim_heap

#: Small enough to lie in the heap, and so many that the rest of the process is nothing beside them.
BLOCK_BYTES, NUM_BLOCKS = 60_000, 1_000


@pytest.mark.skipif(sys.platform != "linux", reason="the C library keeps it")
def test_what_is_freed_below_something_that_stays_goes_back() -> None:
    blocks = [b"x" * BLOCK_BYTES for _ in range(NUM_BLOCKS)]
    before = psutil.Process().memory_info().rss
    del blocks[:-1]
    trim_heap()
    given_back = before - psutil.Process().memory_info().rss
    assert given_back > 0.8 * BLOCK_BYTES * NUM_BLOCKS
