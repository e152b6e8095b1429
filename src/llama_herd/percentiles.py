"""Percentiles of times, each of them a time that really occurred."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Percentiles:
    """The seconds that half and 95 % of the cases do not exceed; None without cases."""

    p50_s: float | None
    p95_s: float | None

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> Self:
        return cls(nearest_rank(seconds, 0.50), nearest_rank(seconds, 0.95))


def nearest_rank(seconds: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of the values does not exceed; None without values."""
    ordered = sorted(seconds)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
