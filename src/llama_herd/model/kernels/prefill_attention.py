"""Attention of long spans, which are prompts, by a native library: all spans of a layer in one call.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim, S keys, P pages.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Prompts, Seen, SeenSpans
from llama_herd.model.kernels.attention import (
    WEIGHT_ROUNDING,
    attention_call,
    attention_takes,
    is_close,
)
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.pages import PAGE_TOKENS

@dataclass(frozen=True, eq=False)
class PrefillAttention:
    """A library that attends in bfloat16."""

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


def load_prefill_attention(library: ctypes.CDLL) -> PrefillAttention | None:
    """The attention in tiles of a library that has it, if it is right."""
    library.herd_attend_spans.restype = ctypes.c_bool
    library.herd_attend_spans.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    attention = PrefillAttention(library)
    return attention if _is_right(attention) else None


def _is_right(attention: PrefillAttention) -> bool:
    """Whether spans of random numbers attend as the formula says, in a cache of NaN but for what they see."""
    H, K, D, starts, counts = 6, 2, 80, [0, 290], [70, 37]
    pages = torch.randperm(10)
    first = Seen(torch.tensor([0, 70]), torch.tensor(starts) + 1, torch.tensor([0, 2]), pages)
    spans = SeenSpans(first, torch.tensor(counts))
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
