"""When the tokens of sequences came: a sink for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from time import perf_counter

from llama_herd.worker.engine.step_output import StepOutput


@dataclass
class Stopwatch:
    """Times of each job and of its tokens, and lengths of the steps that only decode."""

    arrived_s: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, list[float]] = field(default_factory=dict)
    step_s: list[float] = field(default_factory=list)

    def __call__(self, outputs: list[StepOutput]) -> None:
        now_s = perf_counter()
        for output in outputs:
            if output.ids:
                self.token_s[output.sequence.job_id].append(now_s)

    def start(self, job_id: str) -> None:
        """Note that a job comes now."""
        self.token_s[job_id] = []
        self.arrived_s[job_id] = perf_counter()

    def ttft_s(self, kind: str = "") -> list[float]:
        """Times to the first token of the jobs whose ids begin with the prefix."""
        return [
            times[0] - self.arrived_s[job_id]
            for job_id, times in self.token_s.items()
            if job_id.startswith(kind)
        ]

    def itl_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Gaps of all streams that end between two times."""
        return [
            after - before
            for times in self.token_s.values()
            for before, after in pairwise(times)
            if since_s < after <= until_s
        ]


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else list(seconds) * 99
    return {f"p{percent}": round(1000 * cuts[percent - 1], 2) for percent in (50, 95, 99)}
