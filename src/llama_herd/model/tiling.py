"""Tiling: how the work of a step is cut into spans and tiles, and with it which bits come out.

Kernels choose their order of additions by the shape of what they get. So a row's result may differ in the
last bits with the number of rows beside it, and a near tie may then be decided otherwise.
"""

from dataclasses import dataclass

#: Most tokens of a chunk that attend at once. It bounds masks and scores, whatever the prompt's length.
SPAN_TOKENS = 512

#: A span of so many tokens and fewer is short.
SHORT_TOKENS = 4

#: Most keys, and most scores of a head, of the spans that attend as one group: it bounds what gathering them
#: takes, however many there are. One span alone may have more.
GROUP_KEYS = 1 << 15
GROUP_SCORES = 1 << 22


@dataclass(frozen=True)
class Tiling:
    """`row_tile`: matrix products take exactly so many rows at a time; 0: all at once.

    `span_tokens`: most tokens of a sequence that attend at once.
    """

    row_tile: int
    span_tokens: int

    @property
    def is_fixed(self) -> bool:
        """Whether each row meets the same shapes whoever runs beside it, so that its bits never differ."""
        return self.row_tile > 0


#: The work is cut as the kernels are fastest.
FREE = Tiling(row_tile=0, span_tokens=SPAN_TOKENS)

#: The same bits in any batch, for the price of padded products and of attention token by token.
FIXED = Tiling(row_tile=16, span_tokens=1)
