"""What attention kernels are given: which tokens attend, which keys each sees, how these are scored.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim.
"""

from dataclasses import dataclass

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
    max_tokens: int  # no span has more


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
