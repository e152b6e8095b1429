"""StepOutput: the engine's report of one sequence after a step."""

from typing import NamedTuple

from llama_herd.tasks.protocol.events import Failure, FinishReason, StopReason
from llama_herd.worker.engine.sampling.row import SampledToken
from llama_herd.worker.engine.sequence_info import SequenceInfo


class StepOutput(NamedTuple):
    """One sequence after a step: that it has started, its new tokens, or that it has ended."""

    sequence: SequenceInfo
    tokens: tuple[SampledToken, ...] = ()
    text: str = ""
    has_started: bool = False
    num_cached: int = 0  # beside `has_started`: tokens of the prompt that the prefix cache had
    finish_reason: FinishReason | None = None
    error: Failure | None = None
    prompt_scores: tuple[SampledToken, ...] | None = None  # with the first token, if asked for
    stop_reason: StopReason = None  # with its last tokens: what ended it, if nothing outside did

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)
