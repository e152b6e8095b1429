"""How large a forward may be, learnt from those that ran out of memory. Plain Python: no tensor."""

from collections.abc import Sequence as Rows
from typing import NamedTuple

from llama_herd.worker.engine.runner import Row

#: After this many forwards within the limits a larger one is tried again.
RETRY_FORWARDS = 1024


class ForwardSize(NamedTuple):
    """The size of a forward, as its memory grows: rows for the logits, tokens for the activations."""

    num_rows: int
    num_tokens: int

    @classmethod
    def from_rows(cls, rows: Rows[Row]) -> "ForwardSize":
        return cls(len(rows), sum(row.num_tokens for row in rows))

    @property
    def half(self) -> "ForwardSize":
        """Half of the size, rounded up, so that a single row never exceeds it."""
        return ForwardSize((self.num_rows + 1) // 2, (self.num_tokens + 1) // 2)

    def exceeds(self, limit: "ForwardSize") -> bool:
        """Return whether both numbers exceed: many rows of one token tell nothing about a long prompt."""
        return self.num_rows > limit.num_rows and self.num_tokens > limit.num_tokens


class SizeLimits:
    """Prevents forwards that are as large as one that ran out of memory.

    Each failed forward leaves half of its size as a limit. The newest limit is the first to be lifted.
    """

    def __init__(self) -> None:
        self._limits: list[ForwardSize] = []
        self._num_forwards = 0  # since the last change

    def allow(self, rows: Rows[Row]) -> bool:
        return not any(ForwardSize.from_rows(rows).exceeds(limit) for limit in self._limits)

    def note_lack(self, rows: Rows[Row]) -> None:
        """Note that a forward of these rows ran out of memory."""
        self._limits.append(ForwardSize.from_rows(rows).half)
        self._num_forwards = 0

    def note_run(self) -> None:
        """Note that a forward has succeeded."""
        self._num_forwards += 1
        if self._limits and self._num_forwards >= RETRY_FORWARDS:
            self._limits.pop()
            self._num_forwards = 0
