"""The figures of a round of jobs: tokens per second, time to first token, time between tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from llama_herd.cli.demo.progress import Progress
from llama_herd.percentiles import Percentiles


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
