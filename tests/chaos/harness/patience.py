"""Waits for conditions, for as long as a busy machine may need."""

from collections.abc import Callable
from time import monotonic, sleep

#: Longest time to the end of a job on a busy machine, including faults and the patience of the sweep.
PATIENCE_S = 60.0

POLL_S = 0.01


def need(is_so: object, what: str) -> None:
    """Raise TimeoutError unless what a test needs is still so: on a busy machine it may come too late.

    A fault test that fails so is run once more.
    """
    if not is_so:
        raise TimeoutError(f"too late: {what}")


def wait_until(is_true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll a condition. Raises TimeoutError with its name if it does not come true in time."""
    deadline_s = monotonic() + patience_s
    while not is_true():
        if monotonic() >= deadline_s:
            raise TimeoutError(f"{what} did not come true within {patience_s:.0f} s")
        sleep(POLL_S)
