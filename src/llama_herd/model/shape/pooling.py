"""How states of a text become its vector, and what a setting may say of that. It imports next to nothing."""

from enum import StrEnum
from typing import Literal, TypeAlias

#: What HERD_POOLING may be. "auto": the files say the purpose.
Override: TypeAlias = Literal["auto", "last", "mean", "cls", "rank"]


class Pooling(StrEnum):
    """Which of a text's states become its vector."""

    LAST = "last"  # that of its last token
    MEAN = "mean"  # all, on average
    CLS = "cls"  # that of its first token

    def wanted(self, num_tokens: int, num_skipped: int = 0) -> range:
        """The positions whose mean is the vector; the first `num_skipped` tokens are a prompt that is not."""
        match self:
            case Pooling.LAST:
                return range(num_tokens - 1, num_tokens)
            case Pooling.MEAN:
                return range(num_skipped, num_tokens)
            case Pooling.CLS:
                return range(num_skipped, num_skipped + 1)
