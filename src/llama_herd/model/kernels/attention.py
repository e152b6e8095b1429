"""Attention by a native library: of a layer's single tokens in one call, of its long spans in another.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys, P pages.
"""

import ctypes
from dataclasses import replace

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans, are_readable
from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart, members
from llama_herd.model.kernels.trials import TRIED, attention_is_right

#: How the keys of models are scored that it is tried with.
WAYS = (TRIED, replace(TRIED, scale=0.3, windows=frozenset({90}), cap=4.0))


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
    """`AttentionKernel` of spans by a library, in bfloat16."""

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

    tried = (replace(way, dtype=dtype) for way in WAYS for dtype in DTYPES)
    is_right = all(attention_is_right(attend, needs, [(0, 1), (69, 1), (599, 1)]) for needs in tried)
    return attention if is_right else None


def load_prefill_attention(library: ctypes.CDLL) -> PrefillAttention | None:
    """The attention in tiles of a library that has it, if it is right."""
    library.herd_attend_spans.restype = ctypes.c_bool
    library.herd_attend_spans.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    attention = PrefillAttention(library)
    tried = (replace(way, dtype=torch.bfloat16) for way in WAYS)
    is_right = all(attention_is_right(attention, needs, [(0, 70), (290, 37)]) for needs in tried)
    return attention if is_right else None
