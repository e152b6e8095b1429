"""Attention of whole spans by Triton: the tokens of prompts, in one launch a layer.

Nothing is gathered: pages are read where they lie.

Shapes: T tokens of the ragged batch, B spans, H heads, K kv heads, D head dim, P pages.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from llama_herd.model.attention_inputs import Scoring, SeenSpans, are_readable
from llama_herd.model.kernels.gpu.attention import DTYPES, LOG2_E, fold_more, given_to_attend
from llama_herd.model.kernels.gpu.launch import Launch

#: The score of a key that a token does not see: so small that its weight is gone once a real one is met.
UNSEEN = constexpr(-1e30)


@triton.jit(
    do_not_specialize=["window"],
    do_not_specialize_on_alignment=["rows", "num_keys", "tables", "pages", "num_tokens"],
)
def attend_spans(
    q,  # (T, H, D), the rows `q_row` numbers apart
    keys,  # (K, pages, PAGE, D), the heads `kv_head` numbers apart
    values,
    rows,  # (B,) and so on, as in Seen: of the first token of each span
    num_keys,
    tables,
    pages,
    num_tokens,  # (B,)
    out,  # (T, H, D)
    q_row,
    kv_head,
    out_row,
    window,
    scale,
    cap,
    GROUP: constexpr,  # queries of a kv head
    HEAD_DIM: constexpr,
    HEAD_PADDED: constexpr,
    PAGE: constexpr,
    TILE: constexpr,  # tokens at a time
    BLOCK: constexpr,  # keys at a time; a page is whole blocks
    HAS_WINDOW: constexpr,
    HAS_CAP: constexpr,
    PRECISION: constexpr,
):
    """Attend one head of a tile of a span's tokens to the keys before them and their own."""
    span, head, skipped = tl.program_id(0), tl.program_id(1), tl.program_id(2) * TILE
    count = tl.minimum(tl.load(num_tokens + span).to(tl.int32) - skipped, TILE)
    token, start = tl.load(rows + span) + skipped, tl.load(num_keys + span).to(tl.int32) - 1 + skipped
    table = pages + tl.load(tables + span)

    query, number, step = tl.arange(0, TILE), tl.arange(0, HEAD_PADDED), tl.arange(0, BLOCK)
    in_head = number < HEAD_DIM
    own = head * HEAD_DIM + number[None, :]
    mask = (query < count)[:, None] & in_head[None, :]
    queries = tl.load(q + (token + query)[:, None] * q_row + own, mask=mask, other=0.0)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    found = tl.zeros([TILE, HEAD_PADDED], tl.float32)
    keys += (head // GROUP).to(tl.int64) * kv_head
    values += (head // GROUP).to(tl.int64) * kv_head
    own_key = step[:, None] * HEAD_DIM + number[None, :]
    begin, end = 0, tl.where(count > 0, start + count, 0)
    if HAS_WINDOW:
        begin = tl.maximum(start - window + 1, 0) // BLOCK * BLOCK
    for key in tl.range(begin, end, BLOCK):
        place = (tl.load(table + key // PAGE) * PAGE + key % PAGE) * HEAD_DIM
        # Behind the last key the page holds anything. Its scores are dropped, but 0 times NaN would be NaN.
        k = tl.load(keys + place + own_key, mask=in_head[None, :], other=0.0)
        there = (key + step < end)[:, None] & in_head[None, :]
        v = tl.load(values + place + own_key, mask=there, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        if HAS_CAP:
            # cap * tanh(scores / cap); there is no tanh that every target has
            scores = cap - 2 * cap / (tl.exp2(scores * (2 * LOG2_E / cap)) + 1)
        ahead = (key + step)[None, :] - (start + query)[:, None]  # how far a key is ahead of a token
        seen = ahead <= 0
        if HAS_WINDOW:
            seen &= ahead > -window
        scores = tl.where(seen, scores * LOG2_E, UNSEEN)
        largest, total, found = fold_more(largest, total, found, scores, v, PRECISION)
    found = found / tl.where(total == 0, 1.0, total)[:, None]
    # Read again: what is kept through the loop takes registers from it, which some cards lack.
    count, token = tl.load(num_tokens + span).to(tl.int32) - skipped, tl.load(rows + span) + skipped
    mask = (query < count)[:, None] & in_head[None, :]
    place = (token + query)[:, None] * out_row + own
    tl.store(out + place, found.to(out.dtype.element_ty), mask=mask)


#: Tokens, and keys, at a time, by the bytes of a head up to which registers suffice.
TILES = {256: (64, 64), 512: (32, 32), 1024: (16, 16)}


@dataclass(frozen=True)
class TritonSpanAttention:
    """`AttentionKernel` of spans on a card."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return q.dtype in DTYPES and are_readable(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, spans: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        attending(q, cached, spans, out, scoring)()


def attending(q: Tensor, cached: Tensor, spans: SeenSpans, out: Tensor, scoring: Scoring) -> Launch:
    """The launch that attends spans into `out`."""
    given, constants = given_to_attend(q, cached, spans.first, out, scoring)
    head_bytes = constants["HEAD_PADDED"] * q.itemsize * (2 if q.dtype is torch.float32 else 1)
    tile, block = next(sizes for most, sizes in TILES.items() if head_bytes <= most or most == max(TILES))
    return Launch(
        attend_spans,
        (len(spans.num_tokens), q.shape[1], triton.cdiv(spans.max_tokens, tile)),
        {**given, "num_tokens": spans.num_tokens},
        {**constants, "TILE": tile, "BLOCK": block},
        num_warps=8 if q.dtype is torch.float32 else 4,
        num_stages=2,
    )
