"""The engine as others see it: what it does for them, and the frozen values that it tells. No tensor.

Sequences go in, outputs come out by the sink that it was made with, and its figures may be read at any time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from llama_herd.tasks.protocol.events import Failure, FinishReason, StopReason
from llama_herd.worker.engine.figures import EngineStats

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


class Admitted(NamedTuple):
    """A sequence has a place for the first time. It is computed once its start is confirmed."""

    sequence: SequenceInfo
    num_cached: int | None = 0  # of its prompt, in the prefix cache; None: not known


class Displaced(NamedTuple):
    """A more urgent one has the place of this sequence, which waits again."""

    sequence: SequenceInfo


class Lost(NamedTuple):
    """What computed a sequence has died: it is prepared anew, from what is on record."""

    sequence: SequenceInfo


class PromptScores(NamedTuple):
    """How likely each token of the prompt was, if asked for; they come before the first token."""

    sequence: SequenceInfo
    scores: tuple[SampledToken, ...]


class NewTokens(NamedTuple):
    """Tokens, and the text that may be shown by now: one of both at least."""

    sequence: SequenceInfo
    tokens: tuple[SampledToken, ...]
    text: str


class NewVector(NamedTuple):
    """The vector of a text: float32, little-endian."""

    sequence: SequenceInfo
    vector: bytes


class Finished(NamedTuple):
    """A sequence has ended: nothing follows. stop_reason: what ended it, if nothing outside did."""

    sequence: SequenceInfo
    finish_reason: FinishReason
    stop_reason: StopReason = None
    error: Failure | None = None


#: What an engine tells of a sequence.
StepOutput = Admitted | Displaced | Lost | PromptScores | NewTokens | NewVector | Finished

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
