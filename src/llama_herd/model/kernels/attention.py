"""Attention by a native library: of a layer's single tokens in one call, of its long spans in another.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys, P pages.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Prompts, Scoring, Seen, SeenSpans, are_readable
from llama_herd.model.pages import PAGE_TOKENS

#: The types of numbers that the library is made for.
DTYPES = (torch.float32, torch.bfloat16)

#: What sums in float32 may be away from sums in float64, in parts of the sum of their terms' sizes.
FLOAT32_ROUNDING = 3e-6
BFLOAT16_ROUNDING = 2**-8
#: What weights in bfloat16, of a rough exponential, may change in parts of the sum of weight x |value|.
WEIGHT_ROUNDING = 2**-8 + 2**-12


class AttentionCall(ctypes.Structure):
    """herd::Attention, which says what each is."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("y", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("head_stride", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("cap", ctypes.c_float),
        ("num_threads", ctypes.c_int),
    )


@dataclass(frozen=True, eq=False)
class Attention:
    """A library that attends to single tokens' keys."""

    library: ctypes.CDLL
    num_threads: int = 0  # 0: as many as torch has

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""
        return q.dtype in DTYPES and attention_takes(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
        """Write what the seen rows of q (T, H, D) attend to into theirs of `out` (T, H, D).

        `cached` are a layer's keys and values (2, K, pages, PAGE_TOKENS, D).
        """
        num_threads = self.num_threads or torch.get_num_threads()
        call = attention_call(q.shape[1], cached, seen, scoring, num_threads)
        call.q, call.q_stride, call.y = q.data_ptr(), q.stride(0), out.data_ptr()
        if not self.library.herd_attend(ctypes.byref(call), q.dtype is torch.bfloat16):
            raise torch.OutOfMemoryError("native attention: no memory to work in")


@dataclass(frozen=True, eq=False)
class PrefillAttention:
    """A library that attends to the keys of long spans, which are prompts, in bfloat16."""

    library: ctypes.CDLL
    num_threads: int = 0  # 0: as many as torch has

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""
        return q.dtype is torch.bfloat16 and attention_takes(q, cached)

    def __call__(self, q: Tensor, cached: Tensor, prompts: Prompts, out: Tensor, scoring: Scoring) -> None:
        """Write what the prompts' rows of q (T, H, D) attend to into theirs of `out` (T, H, D).

        `cached` are a layer's keys and values (2, K, pages, PAGE_TOKENS, D).
        """
        self.attend(q, cached, prompts.seen_spans, out, scoring)

    def attend(self, q: Tensor, cached: Tensor, spans: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        """Attend the tokens of spans, as `__call__` does those of prompts."""
        num_threads = self.num_threads or torch.get_num_threads()
        call = attention_call(q.shape[1], cached, spans.first, scoring, num_threads)
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
    return attention if all(_is_right(attention, dtype) for dtype in DTYPES) else None


def _is_right(attention: Attention, dtype: torch.dtype) -> bool:
    """Whether rows of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    H, K, D, lengths = 6, 2, 80, [1, 70, 600]
    pages = torch.randperm(1 + 2 + 10)
    tables = torch.tensor([0, 1, 3])
    seen = Seen(torch.arange(3), torch.tensor(lengths), tables, pages)
    cache = torch.full((2, K, len(pages), PAGE_TOKENS, D), torch.nan, dtype=dtype)
    q, out = torch.randn(3, H, D).to(dtype), torch.empty(3, H, D, dtype=dtype)
    for table, length in zip(tables.tolist(), lengths, strict=True):
        at = torch.arange(length)
        numbers = torch.randn(2, K, length, D).to(dtype)
        cache[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers
    rounding = WEIGHT_ROUNDING if dtype is torch.bfloat16 else 0.0
    for scoring in (Scoring(), Scoring(0.3, 90, 4.0)):
        attention(q, cache, seen, out, scoring)
        for row, length in enumerate(lengths):
            at = torch.arange(max(0, length - scoring.window) if scoring.window else 0, length)
            keys, values = cache[:, :, pages[tables[row] + at // PAGE_TOKENS], at % PAGE_TOKENS]
            if not is_close(out[row], q[row], keys, values, scoring, rounding):
                return False
    return True


def load_prefill_attention(library: ctypes.CDLL) -> PrefillAttention | None:
    """The attention in tiles of a library that has it, if it is right."""
    library.herd_attend_spans.restype = ctypes.c_bool
    library.herd_attend_spans.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    attention = PrefillAttention(library)
    return attention if _is_right_of_spans(attention) else None


def _is_right_of_spans(attention: PrefillAttention) -> bool:
    """Whether spans of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    H, K, D, starts, counts = 6, 2, 80, [0, 290], [70, 37]
    pages = torch.randperm(10)
    first = Seen(torch.tensor([0, 70]), torch.tensor(starts) + 1, torch.tensor([0, 2]), pages)
    spans = SeenSpans(first, torch.tensor(counts), max(counts))
    cache = torch.full((2, K, len(pages), PAGE_TOKENS, D), torch.nan, dtype=torch.bfloat16)
    q, out = torch.randn(2, sum(counts), H, D).bfloat16()
    for table, start, count in zip((0, 2), starts, counts, strict=True):
        at = torch.arange(start + count)
        numbers = torch.randn(2, K, start + count, D).bfloat16()
        cache[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS] = numbers
    for scoring in (Scoring(), Scoring(0.3, 90, 4.0)):
        attention.attend(q, cache, spans, out, scoring)
        window = scoring.window
        for table, start, row in ((0, 0, 0), (0, 69, 69), (2, 290, 70), (2, 326, 106)):
            at = torch.arange(max(0, start + 1 - window) if window else 0, start + 1)
            keys, values = cache[:, :, pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS]
            if not is_close(out[row], q[row], keys, values, scoring, WEIGHT_ROUNDING):
                return False
    return True


def is_close(
    y: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scoring: Scoring,
    weight_rounding: float = 0.0,
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
