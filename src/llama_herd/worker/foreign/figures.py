"""ForeignFigures: what a worker counts of the tokens that its server computes, as of any engine."""

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf

from llama_herd.ops.histogram import Histogram
from llama_herd.worker.engine.figures import GAPS, EngineStats, StepFigures
from llama_herd.worker.engine.sequence import Sequence

#: The gap of late is the mean of about so many parts of outputs.
PARTS_OF_LATE = 64


@dataclass(eq=False)
class ForeignFigures:
    """Counts of one engine. One thread counts, any thread may ask for a frozen value.

    Steps are the server's own, so nothing is said of them.
    """

    num_prompt_tokens: int = 0
    num_drawn_tokens: int = 0
    num_prefix_tokens: int = 0
    num_prefix_queries: int = 0
    gap_s: float = 0.0
    gaps: list[int] = field(default_factory=lambda: [*GAPS.counts])
    #: Between two tokens of an output, of late; inf: not known yet.
    recent_gap_s: float = inf

    def forget(self) -> None:
        """Count from now on."""
        self.num_prompt_tokens = self.num_drawn_tokens = 0
        self.gap_s, self.gaps = 0.0, [*GAPS.counts]

    def note_admitted(self, sequence: Sequence) -> None:
        """Count the prompt of a job, once for all of its outputs."""
        if sequence.choice == 0:
            self.num_prompt_tokens += len(sequence.prompt_ids)

    def note_cached(self, num_prompt: int, num_cached: int | None) -> None:
        """Count the tokens of a prompt that the server had, if it says so."""
        if num_cached is not None:
            self.num_prefix_queries += num_prompt
            self.num_prefix_tokens += num_cached

    def note_tokens(self, num: int, gap_s: float | None) -> None:
        """Count tokens that came together, so long after the ones before; None: they are the first."""
        self.num_drawn_tokens += num
        if gap_s is None:
            return
        each_s = gap_s / num
        self.gaps[bisect_left(GAPS.bounds, each_s)] += num
        self.gap_s += gap_s
        before_s = each_s if self.recent_gap_s == inf else self.recent_gap_s
        self.recent_gap_s = before_s + (each_s - before_s) / PARTS_OF_LATE

    @property
    def stats(self) -> EngineStats:
        """What was counted, as one frozen value; all else in it is for the engine to say."""
        gaps = Histogram(GAPS.bounds, tuple(self.gaps), self.gap_s)
        steps = StepFigures(self.num_prompt_tokens, self.num_drawn_tokens, gap_s=gaps)
        return EngineStats(
            num_prefix_tokens=self.num_prefix_tokens,
            num_prefix_queries=self.num_prefix_queries,
            steps=steps,
        )
