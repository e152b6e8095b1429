"""Seen: tokens of a batch that attend one by one, or in spans, and the keys that each sees."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """Each token sees the keys of its own sequence up to itself. All int64, shapes: R tokens, P pages."""

    rows: Tensor  # (R,): which tokens of the batch
    num_keys: Tensor  # (R,)
    tables: Tensor  # (R,): where in `pages` those of its sequence begin
    pages: Tensor  # (P,): of all sequences, each in order


@dataclass(frozen=True, eq=False)
class SeenSpans:
    """Each token of a span sees one key more than the token before it, which is of the same sequence."""

    first: Seen  # the first token of each span
    num_tokens: Tensor  # (B,) int64
