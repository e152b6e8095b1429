"""Threads of torch's operators in a forward whose products native kernels compute, by their own threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Operators on so many tokens and fewer are done sooner by one thread. Torch's others spin for milliseconds
#: before they sleep, on cores that the kernels' threads then lack.
FEW_TOKENS = 64


@contextmanager
def one_for_few(num_tokens: int) -> Iterator[None]:
    """Let torch have one thread meanwhile if there are few tokens."""
    num_threads = torch.get_num_threads()
    if num_tokens > FEW_TOKENS or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
