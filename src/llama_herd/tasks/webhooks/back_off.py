"""When a message that was not taken is tried again: soon at first, and for the last time after three days."""

import random

_HOUR_S = 3600
DELAYS_S = (5, 30, 120, 600, _HOUR_S, 3 * _HOUR_S, 6 * _HOUR_S, *[12 * _HOUR_S] * 5)
#: How long all tries take.
PATIENCE_S = sum(DELAYS_S)
#: Messages that failed together are tried apart: up to so much later.
JITTER = 0.25


def delay_ms(num_tries: int) -> int | None:
    """How long to wait after so many tries; None: it is given up."""
    if num_tries > len(DELAYS_S):
        return None
    return int(1000 * DELAYS_S[num_tries - 1] * random.uniform(1, 1 + JITTER))
