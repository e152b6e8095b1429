"""How large a forward may be, as those that lacked memory have shown. Plain Python: no tensor."""

from collections.abc import Sequence as Rows
from typing import NamedTuple

from llama_herd.worker.engine.scheduler import Row

#: After so many forwards within the limits something larger is tried again.
RETRY_FORWARDS = 1024


class Size(NamedTuple):
    """What a forward's memory grows with: logits by rows, activations by tokens."""

    num_rows: int
    num_tokens: int

    @classmethod
    def of(cls, rows: Rows[Row]) -> "Size":
        return cls(len(rows), sum(row.num_tokens for row in rows))

    @property
    def half(self) -> "Size":
        """Rounded up, so that a row alone is never more."""
        return Size((self.num_rows + 1) // 2, (self.num_tokens + 1) // 2)

    def exceeds(self, limit: "Size") -> bool:
        """In both: many rows of one token say nothing of a long prompt, nor the other way round."""
        return self.num_rows > limit.num_rows and self.num_tokens > limit.num_tokens


class SizeLimits:
    """Keeps a forward from being tried again and again where one as large lacked memory.

    Each that failed leaves half of its size as a limit. The last one left is the first to be given up.
    """

    def __init__(self) -> None:
        self._limits: list[Size] = []
        self._num_forwards = 0  # since the last change

    def allow(self, rows: Rows[Row]) -> bool:
        return not any(Size.of(rows).exceeds(limit) for limit in self._limits)

    def note_lack(self, rows: Rows[Row]) -> None:
        """A forward of these rows lacked memory."""
        self._limits.append(Size.of(rows).half)
        self._num_forwards = 0

    def note_run(self) -> None:
        """A forward was done."""
        self._num_forwards += 1
        if self._limits and self._num_forwards >= RETRY_FORWARDS:
            self._limits.pop()
            self._num_forwards = 0
