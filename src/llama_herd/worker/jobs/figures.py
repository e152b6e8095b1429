"""JobFigures and WorkerFigures: counts and times of a worker's jobs, as frozen values, a tenant each."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from operator import add
from statistics import median
from time import monotonic

from llama_herd.ops.histogram import Histogram
from llama_herd.tasks.protocol.events import GOOD_ENDS
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.engine.figures import EngineStats
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

#: How a job ends as somebody wished.
ASKED_FOR = (*GOOD_ENDS, "cancelled")


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
    ends: Counter[str] = field(default_factory=Counter)  # by finish reason or error code
    num_refused: int = 0  # ended before they reached the engine
    num_taken_over: int = 0  # started here though an earlier attempt had started them
    num_retries: int = 0  # put back after an error, to be tried again
    num_fenced: int = 0  # events that were refused, since another worker has the job
    num_repeats: int = 0  # calls that were repeated, since Redis did not answer or was full

    @property
    def num_ended(self) -> int:
        return sum(self.ends.values())

    @property
    def num_failed(self) -> int:
        """Number of jobs that ended by an error: nobody had asked for their end."""
        return sum(number for outcome, number in self.ends.items() if outcome not in ASKED_FOR)

    def __add__(self, other: "JobFigures") -> "JobFigures":
        """Return the figures of both together."""
        sums = {one.name: add(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)}
        return JobFigures(**sums)

    def with_end(self, attempt: Attempt) -> "JobFigures":
        """Count the end of a job, whose final event `attempt` has just written."""
        timings = attempt.timings
        queue_s, first_s, total_s = timings.queue_s, timings.ttft_s, timings.total_s or 0.0
        figures = replace(
            self, ends=self.ends + Counter([attempt.outcome]), total_s=self.total_s.plus(total_s)
        )
        if queue_s is None or first_s is None:
            return figures
        return replace(
            figures,
            prefill_s=self.prefill_s.plus(first_s - queue_s),
            decode_s=self.decode_s.plus(total_s - first_s),
            num_prompt_tokens=self.num_prompt_tokens.plus(attempt.num_prompt_tokens or 0),
            num_drawn_tokens=self.num_drawn_tokens.plus(attempt.stream.num_drawn_tokens),
        )


#: The rate of tokens is that of this time, the first token that of the jobs which ended within this time.
RATE_S = 10.0
ENDS_S = 60.0
#: Tokens are counted in slices of this length.
SLICE_S = 1.0
#: Most ends that are kept: more do not change a median.
MAX_ENDS = 512


class RecentFigures:
    """Rates of tokens and times to first tokens over the last seconds. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._slices: deque[tuple[float, int]] = deque()  # when it began, and its tokens
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_ENDS)  # when it was, and ttft

    def note_tokens(self, num_tokens: int) -> None:
        """Note that so many tokens were drawn in a step."""
        now_s = self._clock()
        with self._lock:
            if self._slices and now_s - self._slices[-1][0] < SLICE_S:
                began_s, num_before = self._slices.pop()
                self._slices.append((began_s, num_before + num_tokens))
            elif num_tokens:
                self._slices.append((now_s, num_tokens))
            while self._slices and now_s - self._slices[0][0] > RATE_S:
                self._slices.popleft()

    def note_end(self, ttft_s: float | None) -> None:
        """Note that a job has ended; its first token came `ttft_s` after the job was due."""
        if ttft_s is not None:
            with self._lock:
                self._first_tokens.append((self._clock(), ttft_s))

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second within the last seconds; from the first one on if that is not so long ago."""
        now_s = self._clock()
        with self._lock:
            recent = [one for one in self._slices if now_s - one[0] <= RATE_S]
        if not recent:
            return 0.0
        return sum(num_tokens for _, num_tokens in recent) / max(SLICE_S, now_s - recent[0][0])

    @property
    def ttft_s(self) -> float:
        """Median time to the first token of the jobs that ended within the last minute; 0: none did."""
        now_s = self._clock()
        with self._lock:
            recent = [ttft_s for at_s, ttft_s in self._first_tokens if now_s - at_s <= ENDS_S]
        return median(recent) if recent else 0.0


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """All figures of a worker at one moment. `jobs` are those of all its tenants."""

    status: WorkerStatus
    engine: EngineStats
    jobs: JobFigures
    grammars: GrammarFigures
    num_put_back: int  # jobs whose message this worker's sweeps have pushed again
    num_unread_links: int  # messages in lists from which nobody takes links
    num_later_tasks: int  # tasks of others that it holds until their ETA in the places of jobs
    num_waiting_steps: int  # steps that wait for Redis
    lag_s: float  # age of the oldest events that Redis does not have
