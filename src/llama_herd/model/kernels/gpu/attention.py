"""Attention of single tokens over their sequences by Triton: all rows of a layer in one launch or two.

Nothing is gathered: pages are read where they lie.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, P pages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton import next_power_of_2

from llama_herd.model.attention_inputs import Seen
from llama_herd.model.kernels.gpu.attend_kernels import attend_split, join_splits
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.layout import are_readable
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.pages import PAGE_TOKENS

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: Keys at a time. More need more registers and no fewer bytes.
BLOCK_KEYS = 32
#: Tensor cores multiply no fewer rows.
LEAST_QUERIES = 16
#: The most parts of a sequence, and programs that a processor of the card should have at least.
MAX_SPLITS, PROGRAMS_A_PROCESSOR = 32, 4


@dataclass(frozen=True)
class TritonAttention:
    """Attention on a card with so many processors."""

    num_processors: int

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""
        return q.dtype in DTYPES and are_readable(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
        """Write what the seen rows of q (T, H, D) attend to into theirs of `out` (T, H, D).

        `cached` are a layer's keys and values (2, K, pages, PAGE_TOKENS, D).
        """
        num_splits = self.num_splits(len(seen.rows), cached.shape[1], len(seen.pages))
        for launch in launches(q, cached, seen, out, num_splits, scoring):
            launch()

    def num_splits(self, num_rows: int, kv_heads: int, num_pages: int) -> int:
        """The number of splits: a power of two, enough for all processors, none for less than a page."""
        wanted = PROGRAMS_A_PROCESSOR * self.num_processors // max(1, num_rows * kv_heads)
        most = max(1, min(wanted, num_pages // max(1, num_rows), MAX_SPLITS))
        return 1 << most.bit_length() - 1


def launches(
    q: Tensor, cached: Tensor, seen: Seen, out: Tensor, num_splits: int, scoring: Scoring
) -> tuple[Launch, ...]:
    """The kernels to run: one; with splits a second one that joins them."""
    R, (_, H, D) = len(seen.rows), q.shape
    found, sizes = out, out
    if num_splits > 1:
        found = q.new_empty(R, H, num_splits, D, dtype=torch.float32)
        sizes = q.new_empty(R, H, num_splits, dtype=torch.float32)
    attend = _attending(q, cached, seen, out, found, sizes, scoring)
    return (attend,) if num_splits == 1 else (attend, _joining(found, sizes, seen, out))


def _attending(
    q: Tensor,
    cached: Tensor,
    seen: Seen,
    out: Tensor,
    found: Tensor,
    sizes: Tensor,
    scoring: Scoring,
) -> Launch:
    """The launch that attends sequences into `out`, if `found` is that, or splits into `found`, `sizes`."""
    _, H, D = q.shape
    keys, values = cached  # (K, pages, PAGE_TOKENS, D) each
    K, num_splits = len(keys), 1 if found is out else found.shape[2]
    given = {"q": q, "keys": keys, "values": values, "rows": seen.rows, "num_keys": seen.num_keys}
    given |= {"tables": seen.tables, "pages": seen.pages, "out": found, "sizes": sizes}
    strides = {"q_row": q.stride(0), "kv_head": keys.stride(0), "out_row": out.stride(0)}
    numbers = {"window": scoring.window, "scale": scoring.scale_for(D), "cap": scoring.cap}
    constants = {
        "GROUP": H // K,
        "GROUP_PADDED": max(LEAST_QUERIES, next_power_of_2(H // K)),
        **_head(D),
        "PAGE": PAGE_TOKENS,
        "BLOCK": BLOCK_KEYS,
        "HAS_WINDOW": scoring.window > 0,
        "HAS_CAP": scoring.cap > 0,
        "IS_SPLIT": num_splits > 1,
        "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
    }
    return Launch(
        attend_split,
        (len(seen.rows), K, num_splits),
        {**given, **strides, **numbers},
        constants,
        num_warps=8 if q.dtype is torch.float32 and D > 64 else 4,
        num_stages=5 if _head(D)["HEAD_PADDED"] * q.itemsize <= 512 else 3,
    )


def _joining(found: Tensor, sizes: Tensor, seen: Seen, out: Tensor) -> Launch:
    """The launch that joins splits (R, H, splits, D) by their sizes (R, H, splits) into `out`."""
    R, H, num_splits, D = found.shape
    given = {"found": found, "sizes": sizes, "rows": seen.rows, "out": out}
    numbers = {"out_row": out.stride(0), "num_splits": num_splits}
    constants = {**_head(D), "MAX_SPLITS": MAX_SPLITS}
    return Launch(join_splits, (R, H), {**given, **numbers}, constants, num_warps=4, num_stages=1)


def _head(head_dim: int) -> dict[str, int]:
    return {"HEAD_DIM": head_dim, "HEAD_PADDED": max(LEAST_QUERIES, next_power_of_2(head_dim))}
