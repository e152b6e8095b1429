"""What attention kernels are given: which tokens attend, which keys each sees, how these are scored.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from llama_herd.model.pages import PAGE_TOKENS

#: The most numbers of a head that any kernel is made for.
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Scoring:
    """How a layer scores keys."""

    scale: float | None = None  # None: 1 / sqrt(D)
    window: int = 0  # keys that a token sees, its own one of them; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay

    def scale_for(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True, eq=False)
class Seen:
    """Tokens that attend one by one: each sees the keys of its own sequence up to itself.

    All are int64. Shapes: R tokens, P pages.
    """

    rows: Tensor  # (R,): which tokens of the batch
    num_keys: Tensor  # (R,)
    tables: Tensor  # (R,): where in `pages` those of its sequence begin
    pages: Tensor  # (P,): of all sequences, each in order


@dataclass(frozen=True, eq=False)
class SeenSpans:
    """Spans that attend at once: each token sees one key more than the token before it in its sequence."""

    first: Seen  # the first token of each span
    num_tokens: Tensor  # (B,) int64


@dataclass(frozen=True, eq=False)
class Packed:
    """Prompts that attend together, their tokens one behind the other and without padding.

    Each sequence's queries see its own keys: those before them, which may be cached, and themselves.

    The last query of a sequence sees all its keys. Shapes: B sequences, Q queries, S keys of all.
    """

    rows: Tensor  # (Q,): which tokens of the batch
    key_cells: Tensor  # (S,): where the cache keeps keys and values
    query_ends: Tensor  # (B + 1,) int32, from 0: where each sequence's queries end
    key_ends: Tensor  # (B + 1,) int32
    max_queries: int
    max_keys: int

    def keys_and_values(self, cached: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of its own (S, K, D) from those of a layer (2, K, pages, PAGE_TOKENS, D)."""
        keys, values = (self._gathered(part) for part in cached.flatten(2, 3))
        return keys, values

    def _gathered(self, numbers: Tensor) -> Tensor:
        """Copies (S, K, D) of its own cells (K, cells, D).

        torch finds the place of each number by divisions: so eight bytes are one here, and keys are taken
        without values, whose distance does not fit into 32 bits.
        """
        words = numbers.view(torch.int64).index_select(1, self.key_cells)
        return words.view(numbers.dtype).transpose(0, 1)


class Prompts(Protocol):
    """The long spans of a batch in the forms that kernels ask for, each made once for all layers."""

    @property
    def seen_spans(self) -> SeenSpans:
        """Span by span, their keys where the pages lie."""

    @property
    def packed(self) -> tuple[Packed, ...]:
        """Sequence by sequence, their keys one behind the other, in lots."""


def are_readable(q: Tensor, cached: Tensor) -> bool:
    """Whether q (T, H, D), and keys and values (2, K, pages, PAGE_TOKENS, D), lie as kernels read them."""
    head_dim = q.shape[-1]
    return (
        q.dtype == cached.dtype
        and head_dim <= MAX_HEAD_DIM
        and cached.shape[3] == PAGE_TOKENS
        and cached.stride()[2:] == (PAGE_TOKENS * head_dim, head_dim, 1)
        and q.stride()[1:] == (head_dim, 1)
    )
