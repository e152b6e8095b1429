"""Waiting for what must come true, for as long as a busy machine may need for it."""

from collections.abc import Callable
from time import monotonic, sleep

#: How long the end of a job may take on a busy machine, faults and the patience of the sweep included.
PATIENCE_S = 60.0

POLL_S = 0.01


def wait_until(is_true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll a condition. Raises TimeoutError with its name when it does not come true."""
    deadline_s = monotonic() + patience_s
    while not is_true():
        if monotonic() >= deadline_s:
            raise TimeoutError(f"{what} did not come true within {patience_s:.0f} s")
        sleep(POLL_S)
