"""The model and its cache as the engine sees them: rows go in, readings come out. No tensor."""

from collections.abc import Callable, Sequence as Rows
from typing import NamedTuple, Protocol

from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.scheduler import Row
from llama_herd.worker.engine.sequence import Sequence


class Reading(NamedTuple):
    """A forward's result for one row: log-probabilities of its prompt tokens, and the next token if due.

    vector: of a text that is complete, float32; empty if it has NaN or infinity. pooled: of a text that is
    not, for its next row.
    """

    row: Row
    prompt_scores: list[SampledToken]
    token: SampledToken | None
    vector: bytes | None = None
    pooled: object = None


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
