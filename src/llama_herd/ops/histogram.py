"""Histogram: counts of measured values between bounds, frozen, so that any thread may read it."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between each bound and the one before, and then of larger ones; and their total."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def over(cls, *bounds: float) -> Self:
        """An empty histogram with these bounds, which rise."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def plus(self, value: float, times: int = 1) -> "Histogram":
        """Return the histogram with one more measured value, or `times` of them."""
        counts = list(self.counts)
        counts[bisect_left(self.bounds, value)] += times
        return Histogram(self.bounds, tuple(counts), self.total + value * times)

    def __add__(self, other: "Histogram") -> "Histogram":
        """Return both histograms together; their bounds must be equal."""
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)
