"""The model and its cache as the engine sees them: rows go in, readings come out. No tensor."""

from collections.abc import Callable, Sequence as Rows
from typing import NamedTuple, Protocol, Self

from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sequence import Sequence


class Row(NamedTuple):
    """One sequence's share of a step: its next `num_tokens` tokens, one when it decodes."""

    sequence: Sequence
    num_tokens: int
    start: int  # position of the first of them
    is_complete: bool  # whether the sequence's next token can be drawn after the step
    num_scores: int  # how many prompt tokens the step scores: the ones that follow the row's tokens

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> Self:
        """The next tokens of a sequence, as it is now."""
        is_complete = num_tokens == sequence.num_uncached
        num_scores = num_tokens - is_complete if sequence.scores_prompt else 0
        return cls(sequence, num_tokens, sequence.num_cached, is_complete, num_scores)

    @property
    def decodes(self) -> bool:
        """Whether it is one token, after which the next one can be drawn."""
        return self.is_complete and self.num_tokens == 1 and self.sequence.vector is None

    @property
    def num_logits(self) -> int:
        """How many of the row's last tokens need logits, or count in a vector."""
        if self.sequence.vector is None:
            return self.num_scores + self.is_complete
        stop = self.start + self.num_tokens
        return max(0, stop - max(self.start, self.sequence.vector.first))

    @property
    def scored_ids(self) -> list[int]:
        """The prompt tokens that the step scores."""
        return self.sequence.tokens(self.start + 1, self.start + 1 + self.num_scores)


class TokenReading(NamedTuple):
    """Found for a row of tokens: log-probabilities of its prompt tokens, and the next token if due."""

    row: Row
    prompt_scores: list[SampledToken]
    token: SampledToken | None


class PartReading(NamedTuple):
    """Found for a text that goes on: what its next row adds to, which only the runner reads."""

    row: Row
    pooled: object


class VectorReading(NamedTuple):
    """Found for a text that is complete: its vector in float32, or None if it has NaN or infinity."""

    row: Row
    vector: bytes | None


#: A forward's result for one row.
Reading = TokenReading | PartReading | VectorReading

#: Returns what a launched forward has found, waiting for the device if need be. To be called once.
Read = Callable[[], list[Reading]]


class Runner(Protocol):
    """The model and its cache as the engine sees them: rows go in, readings come out, and no tensors.

    No call changes a sequence. A launch that raises has changed nothing that the next tokens depend on, so it
    may be repeated, in any parts: it writes the same keys and values to the same cells.
    """

    #: Whether a step may be launched before the one before it was read.
    overlaps: bool
    #: Called after each layer of a forward that is computed layer by layer.
    on_layer: Callable[[], None] | None

    def begin(self, sequence: Sequence) -> None:
        """Take in a sequence that has its pages now: copy those that it takes over from others."""

    def launch(self, rows: Rows[Row]) -> Read:
        """Compute the rows' tokens, keep their keys and values, draw the next tokens."""
