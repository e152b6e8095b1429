"""What a round of jobs comes to: tokens a second, time to first token, time between tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from llama_herd.worker.demo.progress import Progress


@dataclass(frozen=True)
class Percentiles:
    """Seconds that half, and 95 of 100, of the cases stay within; None without a case."""

    p50_s: float | None
    p95_s: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        return cls(_nearest_rank(seconds, 0.50), _nearest_rank(seconds, 0.95))


@dataclass(frozen=True)
class Figures:
    """One round, from the first submission to the last end."""

    num_tokens: int
    seconds: float
    tokens_per_s: float
    ttft: Percentiles
    itl: Percentiles

    @classmethod
    def of(cls, jobs: Sequence[Progress], seconds: float) -> Self:
        num_tokens = sum(job.num_tokens for job in jobs)
        return cls(
            num_tokens=num_tokens,
            seconds=seconds,
            tokens_per_s=num_tokens / seconds,
            ttft=Percentiles.of([job.ttft_s for job in jobs if job.ttft_s is not None]),
            itl=Percentiles.of([gap_s for job in jobs for gap_s in job.gaps_s]),
        )


def _nearest_rank(seconds: Sequence[float], share: float) -> float | None:
    ordered = sorted(seconds)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
