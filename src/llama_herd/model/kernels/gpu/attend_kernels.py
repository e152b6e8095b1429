"""Device code: attention of single tokens over the pages of their sequences, split over the sequence.

Tensor cores multiply 16 queries at least. One kv head's queries are filled up to that: reading keys and
values is what takes time, and they are read once for all of its queries.
"""

import triton
import triton.language as tl
from triton.language import constexpr

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
def _more(largest, total, found, scores, v, PRECISION: constexpr):
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
        largest, total, found = _more(largest, total, found, scores, v, PRECISION)

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
