"""The engine as others see it: what it does for them, and the frozen values that it tells. No tensor.

Sequences go in, outputs come out by the sink that it was made with, and its figures may be read at any time.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from llama_herd.ops.histogram import Histogram
from llama_herd.tasks.protocol.events import Failure, FinishReason, StopReason
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo

if TYPE_CHECKING:
    from llama_herd.worker.engine.sequence import Sequence

#: Why a sequence is ended from outside. A dropped one ends without an output: its job is another worker's.
Abort = Literal["cancelled", "deadline", "dropped"]


@dataclass(frozen=True, eq=False, slots=True)
class SequenceInfo:
    """Stands for one sequence outside the engine. Each attempt at an output has another one."""

    job_id: str
    tenant: str = ""
    choice: int = 0
    seed: int = 0
    num_prompt_tokens: int = 0

    @property
    def name(self) -> str:
        """A name that only other attempts at it have: a tenant contains no /, and an id no #."""
        return f"{self.tenant}/{self.job_id}#{self.choice}"


class SampledToken(NamedTuple):
    """One row's next token; with `logprobs` also how likely it was, and the likeliest alternatives."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class StepOutput(NamedTuple):
    """One sequence after a step: it has started or lost its place, has new tokens, a vector, or an end."""

    sequence: SequenceInfo
    tokens: tuple[SampledToken, ...] = ()
    text: str = ""
    has_started: bool = False
    has_left: bool = False  # a more urgent one has its place, and it waits again
    is_lost: bool = False  # what computed it has died: it is prepared anew, from what is on record
    num_cached: int | None = 0  # beside `has_started`: of the prompt, in the prefix cache; None: not known
    finish_reason: FinishReason | None = None
    error: Failure | None = None
    prompt_scores: tuple[SampledToken, ...] | None = None  # with the first token, if asked for
    stop_reason: StopReason = None  # with its last tokens: what ended it, if nothing outside did
    vector: bytes | None = None  # of a text: float32, little-endian

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)


class EchoedPrompt(NamedTuple):
    """The prompt that a job gets back if it asks for `echo`: the fields of `Started`, but for the pieces."""

    prompt_ids: tuple[int, ...]
    prompt_text: str
    context_tokens: int
    tokenizer_info: TokenizerInfo | None = None


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

    def with_forward(
        self,
        num_rows: int,
        num_tokens: int,
        step_s: float,
        num_drawn: int,
        gaps_s: Iterable[float],
        num_masked: int = 0,
    ) -> "StepFigures":
        """Count a forward. gaps_s: one for each sequence that drew a token before this one."""
        gap_s = self.gap_s
        for seconds, times in Counter(gaps_s).items():  # those that drew in the same steps are alike
            gap_s = gap_s.plus(seconds, times)
        return StepFigures(
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


#: Where outputs go: one list per step.
Sink = Callable[[list[StepOutput]], None]


class JobEngine(Protocol):
    """An engine at work. Any thread may call it, and no call waits for a step but `stop`."""

    @property
    def stats(self) -> EngineStats:
        """The engine's figures after its last step, or after the last call while it was idle."""

    @property
    def num_waiting(self) -> int:
        """Sequences that are not admitted yet, including those that the engine has not seen."""

    def is_stalled(self, stall_s: float) -> bool:
        """Whether there is work, but nothing of it has moved for `stall_s`."""

    def is_alive(self) -> bool:
        """Whether it was started and has not ended; by itself it ends only by a fault."""

    def submit(self, *sequences: "Sequence") -> None:
        """Take sequences, which nobody else may touch from now on.

        Those of one job go together, since their job's start is confirmed once.
        """

    def confirm(self, infos: Iterable[SequenceInfo]) -> None:
        """Note that the start of these sequences is on record: now they may be computed."""

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        """End sequences at the next step; `dropped` ends them without an output. The first reason stays."""

    def count_anew(self) -> None:
        """Forget what was computed until now; `stats` counts from here on."""

    def start(self) -> None:
        """Begin to take steps; to be called once."""

    def stop(self) -> None:
        """Stop after the current step; running sequences stay as they are."""
