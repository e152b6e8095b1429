"""Attention by a native library: of a layer's single tokens in one call, of its long spans in another.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys, P pages.
"""

import ctypes
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans, are_readable
from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart, members
from llama_herd.model.pages import PAGE_TOKENS, pages_for

#: What sums in float32 may be away from sums in float64, in parts of the sum of their terms' sizes.
FLOAT32_ROUNDING = 3e-6
BFLOAT16_ROUNDING = 2**-8
#: What weights in bfloat16, of a rough exponential, may change in parts of the sum of weight x |value|.
WEIGHT_ROUNDING = 2**-8 + 2**-12


class AttentionCall(ctypes.Structure):
    """herd::Attention, which says what each is."""

    _fields_ = members(
        (POINTER, "q"),
        (NUMBER, "q_stride"),
        (POINTER, "y keys values"),
        (NUMBER, "head_stride heads kv_heads head_dim"),
        (POINTER, "rows lengths tables pages"),
        (NUMBER, "num_rows window"),
        (ctypes.c_float, "scale cap"),
        (ctypes.c_int, "num_threads"),
    )


class Attention(LibraryPart):
    """`AttentionKernel` by a library."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return q.dtype in DTYPES and attention_takes(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
        call = attention_call(q.shape[1], cached, seen, scoring, self.threads)
        call.q, call.q_stride, call.y = q.data_ptr(), q.stride(0), out.data_ptr()
        if not self.library.herd_attend(ctypes.byref(call), q.dtype is torch.bfloat16):
            raise torch.OutOfMemoryError("native attention: no memory to work in")


class PrefillAttention(LibraryPart):
    """`PrefillKernel` by a library, in bfloat16."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return q.dtype is torch.bfloat16 and attention_takes(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, spans: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        call = attention_call(q.shape[1], cached, spans.first, scoring, self.threads)
        call.q, call.q_stride, call.y = q.data_ptr(), q.stride(0), out.data_ptr()
        if not self.library.herd_attend_spans(ctypes.byref(call), spans.num_tokens.data_ptr()):
            raise torch.OutOfMemoryError("native attention of a prompt: no memory to work in")


def attention_takes(q: Tensor, cached: Tensor) -> bool:
    """Whether q (T, H, D), and keys and values (2, K, pages, PAGE_TOKENS, D), lie as libraries read them."""
    return q.device.type == "cpu" and q.shape[-1] % 2 == 0 and are_readable(q, cached)


def attention_call(
    num_heads: int, cached: Tensor, seen: Seen, scoring: Scoring, num_threads: int
) -> AttentionCall:
    """The arguments of an attention, but for the queries and the result."""
    to_values, to_head = cached.stride()[:2]
    return AttentionCall(
        keys=cached.data_ptr(),
        values=cached.data_ptr() + to_values * cached.itemsize,
        head_stride=to_head,
        heads=num_heads,
        kv_heads=cached.shape[1],
        head_dim=cached.shape[-1],
        rows=seen.rows.data_ptr(),
        lengths=seen.num_keys.data_ptr(),
        tables=seen.tables.data_ptr(),
        pages=seen.pages.data_ptr(),
        num_rows=len(seen.rows),
        window=scoring.window,
        scale=scoring.scale_for(cached.shape[-1]),
        cap=scoring.cap,
        num_threads=num_threads,
    )


def load_attention(library: ctypes.CDLL) -> Attention | None:
    """The attention of a library, if it is right."""
    library.herd_attend.restype = ctypes.c_bool
    library.herd_attend.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    attention = Attention(library)

    def attend(q: Tensor, cached: Tensor, tokens: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        attention(q, cached, tokens.first, out, scoring)

    is_right = all(_is_right(attend, dtype, [0, 69, 599], [1, 1, 1]) for dtype in DTYPES)
    return attention if is_right else None


def load_prefill_attention(library: ctypes.CDLL) -> PrefillAttention | None:
    """The attention in tiles of a library that has it, if it is right."""
    library.herd_attend_spans.restype = ctypes.c_bool
    library.herd_attend_spans.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    attention = PrefillAttention(library)
    return attention if _is_right(attention, torch.bfloat16, [0, 290], [70, 37]) else None


def _is_right(
    attend: Callable[[Tensor, Tensor, SeenSpans, Tensor, Scoring], None],
    dtype: torch.dtype,
    starts: list[int],
    counts: list[int],
) -> bool:
    """Whether spans of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    H, K, D = 6, 2, 80
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    *tables, num_pages = accumulate(map(pages_for, ends), initial=0)
    *rows, num_rows = accumulate(counts, initial=0)
    pages = torch.randperm(num_pages)
    first = Seen(torch.tensor(rows), torch.tensor(starts) + 1, torch.tensor(tables), pages)
    spans = SeenSpans(first, torch.tensor(counts), max(counts))
    cache = torch.full((2, K, num_pages, PAGE_TOKENS, D), torch.nan, dtype=dtype)
    q, out = torch.randn(2, num_rows, H, D).to(dtype)
    for table, end in zip(tables, ends, strict=True):
        at = torch.arange(end)
        cache[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = torch.randn(2, K, end, D).to(dtype)
    rounding = WEIGHT_ROUNDING if dtype is torch.bfloat16 else 0.0
    for scoring in (Scoring(), Scoring(0.3, 90, 4.0)):
        attend(q, cache, spans, out, scoring)
        for table, start, row, count in zip(tables, starts, rows, counts, strict=True):
            for token in (0, count - 1):
                end = start + token + 1
                at = torch.arange(max(0, end - scoring.window) if scoring.window else 0, end)
                keys, values = cache[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS]
                if not is_close(out[row + token], q[row + token], keys, values, scoring, rounding):
                    return False
    return True


def is_close(
    y: Tensor, q: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, weight_rounding: float
) -> bool:
    """Whether y (H, D) is what q (H, D) attends to among keys and values (K, S, D), but for rounding."""
    q, keys, values = q.double(), keys.double(), values.double()
    scale, cap = scoring.scale_for(q.shape[-1]), scoring.cap
    group = len(q) // len(keys)
    keys, values = (part.repeat_interleave(group, dim=0) for part in (keys, values))  # (H, S, D)
    scores = scale * torch.einsum("hd,hsd->hs", q, keys)
    sizes = 1 + abs(scale) * torch.einsum("hd,hsd->hs", q.abs(), keys.abs()).amax(dim=-1)  # (H,)
    weights = (cap * (scores / cap).tanh() if cap else scores).softmax(dim=-1)
    exact = torch.einsum("hs,hsd->hd", weights, values)
    allowed = torch.einsum("hs,hsd->hd", weights, values.abs())
    allowed = (FLOAT32_ROUNDING * sizes[:, None] + weight_rounding) * allowed
    if y.dtype is torch.bfloat16:
        allowed = allowed + BFLOAT16_ROUNDING * exact.abs()
    return bool(((y.double() - exact).abs() <= allowed).all())
