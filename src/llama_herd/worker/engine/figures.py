"""What an engine counts, as frozen values: any thread may read them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Self

from llama_herd.ops.histogram import Histogram

#: The bounds of gaps and tokens are vLLM's, so that its dashboards fit.
GAPS = Histogram.over(
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
STEPS = Histogram.over(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = Histogram.over(*(2**power for power in range(11)))
TOKENS = Histogram.over(1, *(2**power for power in range(3, 15)))


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Counts and times of all forwards since the start, as one frozen value."""

    num_prompt_tokens: int = 0  # of admitted sequences, found in the cache or not; once for each job
    num_drawn_tokens: int = 0
    num_masked_tokens: int = 0  # of these, drawn under a constraint
    step_s: Histogram = STEPS  # of each forward
    num_rows: Histogram = ROWS
    num_tokens: Histogram = TOKENS
    gap_s: Histogram = GAPS  # between two tokens of a sequence

    def with_prompt(self, num_tokens: int) -> Self:
        """Count the prompt of a job."""
        return replace(self, num_prompt_tokens=self.num_prompt_tokens + num_tokens)

    def with_forward(
        self,
        num_rows: int,
        num_tokens: int,
        step_s: float,
        num_drawn: int,
        gaps_s: Iterable[float],
        num_masked: int = 0,
    ) -> Self:
        """Count a forward. gaps_s: one for each sequence that drew a token before this one."""
        gap_s = self.gap_s
        for seconds, times in Counter(gaps_s).items():  # those that drew in the same steps are alike
            gap_s = gap_s.plus(seconds, times)
        return type(self)(
            self.num_prompt_tokens,
            self.num_drawn_tokens + num_drawn,
            self.num_masked_tokens + num_masked,
            self.step_s.plus(step_s),
            self.num_rows.plus(num_rows),
            self.num_tokens.plus(num_tokens),
            gap_s,
        )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's figures after its last change."""

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_preemptions: int = 0  # rows that have lost their place to a sequence of a higher priority
    num_recomputed_tokens: int = 0  # by these rows, once they had a place again
    has_work: bool = False
    kv_cache_usage: float = 0.0  # share of the pages that sequences hold
    num_prefix_tokens: int = 0  # prompt tokens that were found in the cache
    num_prefix_queries: int = 0  # prompt tokens that were looked for in it
    steps: StepFigures = field(default_factory=StepFigures)
    away_since_s: float | None = None  # the server that computes does not answer, by time.monotonic

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens looked for that were found."""
        return self.num_prefix_tokens / max(1, self.num_prefix_queries)

    @property
    def away_s(self) -> float:
        """How long the server that computes has not answered; 0: it does, or there is none."""
        return 0.0 if self.away_since_s is None else monotonic() - self.away_since_s
