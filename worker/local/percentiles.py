"""How long most cases took, in seconds that some case really took."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Percentiles:
    """Seconds that half, and 95 of 100, of the cases stay within; None without a case."""

    p50_s: float | None
    p95_s: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        return cls(nearest_rank(seconds, 0.50), nearest_rank(seconds, 0.95))


def nearest_rank(seconds: Sequence[float], share: float) -> float | None:
    """The smallest value that so large a share of them does not exceed; None of none."""
    ordered = sorted(seconds)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
