"""A disk that takes no more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file of this process may grow longer: a write takes what fits, and the next one fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
