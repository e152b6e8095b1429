"""JobFigures and WorkerFigures: counts and times of a worker's jobs, as frozen values, a tenant each."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from typing import Any

from llama_herd.ops.histogram import Histogram
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.engine.interface import EngineStats
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.jobs.attempt import Attempt

#: The bounds of the first five are vLLM's, so that its dashboards fit.
FIRST_TOKENS = Histogram.over(
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
LATENCIES = Histogram.over(
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = Histogram.over(*(digit * 10**power for power in range(5) for digit in (1, 2, 5)))
CALLS = Histogram.over(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: How a job ends that has done what it was asked for.
SUCCESSES = ("stop", "length")
#: How a job ends as somebody wished.
ASKED_FOR = (*SUCCESSES, "cancelled")


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Counts and times since the start: of one tenant's jobs, or of the publisher's calls.

    Times in seconds count as in a job's `timings`.
    """

    queue_s: Histogram = LATENCIES  # jobs that nobody had started before
    first_token_s: Histogram = FIRST_TOKENS  # jobs of which no token was recorded before
    prefill_s: Histogram = LATENCIES  # from start to first token, of jobs that ended here
    decode_s: Histogram = LATENCIES  # from first token to end
    total_s: Histogram = LATENCIES
    num_prompt_tokens: Histogram = TOKENS
    num_drawn_tokens: Histogram = TOKENS  # of all attempts
    call_s: Histogram = CALLS  # from the hand-over of a step's events until Redis has them
    ends: Mapping[str, int] = field(default_factory=Counter)  # by finish reason or error code
    num_refused: int = 0  # ended before they reached the engine
    num_taken_over: int = 0  # started here though an earlier attempt had started them
    num_fenced: int = 0  # events that were refused, since another worker has the job
    num_retries: int = 0  # calls that were repeated, since Redis did not answer or was full

    @property
    def num_ended(self) -> int:
        return sum(self.ends.values())

    @property
    def num_failed(self) -> int:
        """Number of jobs that ended by an error: nobody had asked for their end."""
        return sum(number for outcome, number in self.ends.items() if outcome not in ASKED_FOR)

    def with_start(self, attempt: Attempt, queue_s: float) -> "JobFigures":
        if attempt.stream.is_continued:
            return replace(self, num_taken_over=self.num_taken_over + 1)
        return replace(self, queue_s=self.queue_s.plus(queue_s))

    def with_first_token(self, seconds: float) -> "JobFigures":
        return replace(self, first_token_s=self.first_token_s.plus(seconds))

    def with_end(self, attempt: Attempt) -> "JobFigures":
        """Count the end of a job, whose final event `attempt` has just written."""
        queue_s, first_s, total_s = attempt.timings.queue_s, attempt.timings.ttft_s, attempt.timings.total_s
        figures = replace(
            self,
            ends=Counter(self.ends) + Counter([attempt.outcome]),
            total_s=_plus(self.total_s, total_s),
        )
        if queue_s is None or first_s is None or total_s is None:
            return figures
        return replace(
            figures,
            prefill_s=self.prefill_s.plus(first_s - queue_s),
            decode_s=self.decode_s.plus(total_s - first_s),
            num_prompt_tokens=_plus(self.num_prompt_tokens, attempt.num_prompt_tokens),
            num_drawn_tokens=self.num_drawn_tokens.plus(attempt.stream.num_ids),
        )

    def with_call(self, seconds: float) -> "JobFigures":
        return replace(self, call_s=self.call_s.plus(seconds))

    def with_refused(self) -> "JobFigures":
        return replace(self, num_refused=self.num_refused + 1)

    def with_fenced(self) -> "JobFigures":
        return replace(self, num_fenced=self.num_fenced + 1)

    def with_retry(self) -> "JobFigures":
        return replace(self, num_retries=self.num_retries + 1)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """All figures of a worker at one moment. `jobs` are those of all its tenants."""

    status: WorkerStatus
    engine: EngineStats
    jobs: JobFigures
    grammars: GrammarFigures
    num_put_back: int  # jobs whose message this worker's sweeps have pushed again
    num_waiting_steps: int  # steps that wait for Redis
    lag_s: float  # age of the oldest events that Redis does not have


def summed_figures(parts: Iterable[JobFigures]) -> JobFigures:
    """The figures of the publisher's calls and of all tenants' jobs as one."""
    return reduce(_sum, parts, JobFigures())


def _sum(one: JobFigures, two: JobFigures) -> JobFigures:
    sums: dict[str, Any] = {
        each.name: add(getattr(one, each.name), getattr(two, each.name)) for each in fields(JobFigures)
    }
    return JobFigures(**sums)


def _plus(histogram: Histogram, value: float | None) -> Histogram:
    return histogram if value is None else histogram.plus(value)
