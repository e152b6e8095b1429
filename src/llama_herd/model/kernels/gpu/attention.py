"""Attention of single tokens over their sequences by Triton: all rows of a layer in one launch or two.

Nothing is gathered: pages are read where they lie.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, P pages.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2
from triton.language import constexpr

from llama_herd.model.attention_inputs import Scoring, Seen, are_readable
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.pages import PAGE_TOKENS

LOG2_E = constexpr(1.4426950408889634)


@triton.jit
def _split_of(length, window, split, num_splits, HAS_WINDOW: constexpr, BLOCK: constexpr):
    """The first key that a token sees, and the keys of one split, which begins with a whole block."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    start = first // BLOCK * BLOCK
    share = tl.cdiv(tl.cdiv(length - start, num_splits), BLOCK) * BLOCK
    begin = start + split * share
    return first, begin, tl.minimum(begin + share, length)


@triton.jit
def fold_more(largest, total, found, scores, v, PRECISION: constexpr):
    """Fold more keys into a running softmax: scores in powers of two (queries, keys), values v (keys, D)."""
    now_largest = tl.maximum(largest, tl.max(scores, 1))
    shrink = tl.exp2(largest - now_largest)
    weights = tl.exp2(scores - now_largest[:, None])
    total = total * shrink + tl.sum(weights, 1)
    found = tl.dot(weights.to(v.dtype), v, found * shrink[:, None], input_precision=PRECISION)
    return now_largest, total, found


@triton.jit(
    do_not_specialize=["window"],
    do_not_specialize_on_alignment=["rows", "num_keys", "tables", "pages"],  # may begin anywhere in a tensor
)
def attend_split(
    q,  # (T, H, D), the rows `q_row` numbers apart
    keys,  # (K, pages, PAGE, D), the heads `kv_head` numbers apart
    values,
    rows,  # (R,) and so on, as in Seen
    num_keys,
    tables,
    pages,
    out,  # (T, H, D); of a split (R, H, splits, D) in float32
    sizes,  # of a split: log2 of what its weights sum up to (R, H, splits)
    q_row,
    kv_head,
    out_row,
    window,
    scale,
    cap,
    GROUP: constexpr,  # queries of a kv head
    GROUP_PADDED: constexpr,
    HEAD_DIM: constexpr,
    HEAD_PADDED: constexpr,
    PAGE: constexpr,
    BLOCK: constexpr,  # keys at a time; a page is whole blocks
    HAS_WINDOW: constexpr,
    HAS_CAP: constexpr,
    IS_SPLIT: constexpr,
    PRECISION: constexpr,
):
    """Attend the queries of one kv head of one token to one split of its keys."""
    row, head, split, num_splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    token, length = tl.load(rows + row), tl.load(num_keys + row).to(tl.int32)
    table = pages + tl.load(tables + row)
    first, begin, end = _split_of(length, window, split, num_splits, HAS_WINDOW, BLOCK)

    query, number, step = tl.arange(0, GROUP_PADDED), tl.arange(0, HEAD_PADDED), tl.arange(0, BLOCK)
    in_head, in_group = number < HEAD_DIM, query < GROUP
    own = (head * GROUP + query)[:, None] * HEAD_DIM + number[None, :]
    mask = in_group[:, None] & in_head[None, :]
    queries = tl.load(q + token * q_row + own, mask=mask, other=0.0)
    largest = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    found = tl.zeros([GROUP_PADDED, HEAD_PADDED], tl.float32)
    keys += head.to(tl.int64) * kv_head
    values += head.to(tl.int64) * kv_head
    own_key = step[:, None] * HEAD_DIM + number[None, :]
    for key in tl.range(begin, end, BLOCK):
        place = (tl.load(table + key // PAGE) * PAGE + key % PAGE) * HEAD_DIM
        seen = key + step < end
        if HAS_WINDOW:
            seen &= key + step >= first
        there = seen[:, None] & in_head[None, :]
        k = tl.load(keys + place + own_key, mask=there, other=0.0)
        v = tl.load(values + place + own_key, mask=there, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        if HAS_CAP:
            # cap * tanh(scores / cap); there is no tanh that every target has
            scores = cap - 2 * cap / (tl.exp2(scores * (2 * LOG2_E / cap)) + 1)
        scores = tl.where(seen[None, :], scores * LOG2_E, float("-inf"))
        largest, total, found = fold_more(largest, total, found, scores, v, PRECISION)

    is_empty = total == 0
    found = found / tl.where(is_empty, 1.0, total)[:, None]
    if IS_SPLIT:
        place = (row * tl.num_programs(1) * GROUP + head * GROUP + query) * num_splits + split
        tl.store(out + place.to(tl.int64)[:, None] * HEAD_DIM + number[None, :], found, mask=mask)
        size = tl.where(is_empty, float("-inf"), largest + tl.log2(total))
        tl.store(sizes + place, size, mask=in_group)
    else:
        tl.store(out + token * out_row + own, found.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_splits"])
def join_splits(
    found,  # (R, H, splits, D) float32
    sizes,  # (R, H, splits)
    rows,
    out,  # (T, H, D)
    out_row,
    num_splits,
    HEAD_DIM: constexpr,
    HEAD_PADDED: constexpr,
    MAX_SPLITS: constexpr,
):
    """One head of one token: what its splits found, each by its size."""
    row, head = tl.program_id(0), tl.program_id(1)
    split, number = tl.arange(0, MAX_SPLITS), tl.arange(0, HEAD_PADDED)
    place = (row * tl.num_programs(1) + head) * num_splits + split
    is_there, in_head = split < num_splits, number < HEAD_DIM
    size = tl.load(sizes + place, mask=is_there, other=float("-inf"))
    largest = tl.max(size, 0)
    weights = tl.exp2(size - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    mask = is_there[:, None] & in_head[None, :]
    parts = tl.load(found + place.to(tl.int64)[:, None] * HEAD_DIM + number[None, :], mask=mask, other=0.0)
    joined = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0, 1.0, total)
    token = tl.load(rows + row)
    tl.store(out + token * out_row + head * HEAD_DIM + number, joined.to(out.dtype.element_ty), mask=in_head)


DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: Keys at a time. More need more registers and no fewer bytes.
BLOCK_KEYS = 32
#: Tensor cores multiply no fewer rows.
LEAST_QUERIES = 16
#: The most parts of a sequence, and programs that a processor of the card should have at least.
MAX_SPLITS, PROGRAMS_A_PROCESSOR = 32, 4


@dataclass(frozen=True)
class TritonAttention:
    """`AttentionKernel` on a card with so many processors."""

    num_processors: int

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return q.dtype in DTYPES and are_readable(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
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
    given, constants = given_to_attend(q, cached, seen, out, scoring)
    constants |= {"GROUP_PADDED": max(LEAST_QUERIES, next_power_of_2(constants["GROUP"]))}
    constants |= {"BLOCK": BLOCK_KEYS, "IS_SPLIT": num_splits > 1}
    attend = Launch(
        attend_split,
        (R, cached.shape[1], num_splits),
        {**given, "out": found, "sizes": sizes},
        constants,
        num_warps=8 if q.dtype is torch.float32 and D > 64 else 4,
        num_stages=5 if constants["HEAD_PADDED"] * q.itemsize <= 512 else 3,
    )
    return (attend,) if num_splits == 1 else (attend, _joining(found, sizes, seen, out))


def given_to_attend(
    q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring
) -> tuple[dict[str, Tensor | int | float], dict[str, Any]]:
    """The arguments and the constants that kernels of attention have in common."""
    _, H, D = q.shape
    keys, values = cached  # (K, pages, PAGE_TOKENS, D) each
    given = {"q": q, "keys": keys, "values": values, "rows": seen.rows, "num_keys": seen.num_keys}
    given |= {"tables": seen.tables, "pages": seen.pages, "out": out}
    strides = {"q_row": q.stride(0), "kv_head": keys.stride(0), "out_row": out.stride(0)}
    numbers = {"window": scoring.window, "scale": scoring.scale_for(D), "cap": scoring.cap}
    constants = {
        "GROUP": H // len(keys),
        **padded_head(D),
        "PAGE": PAGE_TOKENS,
        "HAS_WINDOW": scoring.window > 0,
        "HAS_CAP": scoring.cap > 0,
        "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
    }
    return {**given, **strides, **numbers}, constants


def _joining(found: Tensor, sizes: Tensor, seen: Seen, out: Tensor) -> Launch:
    """The launch that joins splits (R, H, splits, D) by their sizes (R, H, splits) into `out`."""
    R, H, num_splits, D = found.shape
    given = {"found": found, "sizes": sizes, "rows": seen.rows, "out": out}
    numbers = {"out_row": out.stride(0), "num_splits": num_splits}
    constants = {**padded_head(D), "MAX_SPLITS": MAX_SPLITS}
    return Launch(join_splits, (R, H), {**given, **numbers}, constants, num_warps=4, num_stages=1)


def padded_head(head_dim: int) -> dict[str, int]:
    return {"HEAD_DIM": head_dim, "HEAD_PADDED": max(LEAST_QUERIES, next_power_of_2(head_dim))}
