"""Cells: what is timed of each engine on each file."""

from dataclasses import dataclass
from statistics import mean

from benchmarks.floors import Floors

#: Tokens that a row may decode: more than all rounds do.
MAX_TOKENS = 128


@dataclass(frozen=True)
class Cell:
    """One thing that is timed: a prompt's prefill, or a step of rows with so many tokens in the cache.

    Or else the vectors of some texts, which have all its tokens together.
    """

    name: str
    num_tokens: int  # that one request computes, or one step
    lengths: tuple[int, ...] = ()
    is_long: bool = False
    num_texts: int = 0

    @property
    def row_tokens(self) -> tuple[int, ...]:
        """Of each row, before it decodes."""
        if self.num_texts:
            return (self.num_tokens // self.num_texts,) * self.num_texts
        return self.lengths or (self.num_tokens,)

    @property
    def most_tokens(self) -> int:
        """Of one row."""
        return max(self.row_tokens) + MAX_TOKENS

    @property
    def cache_tokens(self) -> int:
        """Of all rows, in whole pages."""
        return sum(-(-(one + MAX_TOKENS) // 64) * 64 for one in self.row_tokens)

    def floor_tokens_per_s(self, floors: Floors) -> float:
        """What nobody can be faster than."""
        if not self.lengths:
            return self.num_tokens / floors.prefill_s(len(self.row_tokens), self.row_tokens[0])
        return self.num_tokens / floors.decode_s(len(self.lengths), mean(self.lengths))


CELLS = (
    Cell("prefill 512", 512),
    Cell("1 row", 1, (128,)),
    Cell("8 rows", 8, (128,) * 8),
    Cell("32 rows", 32, (128,) * 32),
    Cell("32 mixed", 32, tuple(range(16, 272, 8))),
)


def long_cells(context: int) -> tuple[Cell, Cell]:
    """A long prompt's prefill, and a row after it."""
    prompt = Cell(f"prefill {context:,}", context, is_long=True)
    return prompt, Cell(f"1 row at {context:,}", 1, (context,), is_long=True)
