"""attend: causal attention of a batch over the cache. The one seam for attention kernels.

Shapes: T tokens of the ragged batch, t tokens of a span, B spans, H heads, K kv heads, D head dim,
S cached length, N cells of the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from llama_herd.model.batch import Span, SpanGroup
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.decode_batch import AnyBatch
from llama_herd.model.packed import Packed
from llama_herd.model.seen import Seen, SeenSpans


@dataclass(frozen=True)
class Scoring:
    """How a layer scores keys."""

    scale: float | None = None  # None: 1 / sqrt(D)
    window: int = 0  # keys that a token sees, its own one of them; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay

    @classmethod
    def of(cls, config: LlamaConfig, layer: int) -> Self:
        return cls(config.attention_scale, config.window(layer), config.score_cap)

    def scale_of(self, q: Tensor) -> float:
        """That of queries (T, H, D)."""
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale


class Attention(Protocol):
    """A kernel for the tokens of short spans, which are those that decode."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""

    def __call__(
        self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, *, scale: float, window: int, cap: float
    ) -> None:
        """Write what the seen rows of q (T, H, D) attend to into theirs of `out` (T, H, D)."""


class PrefillAttention(Protocol):
    """A kernel for the tokens of long spans, which are prompts."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""

    def __call__(
        self,
        q: Tensor,
        cached: Tensor,
        spans: SeenSpans,
        out: Tensor,
        *,
        scale: float,
        window: int,
        cap: float,
    ) -> None:
        """Write what the spans' rows of q (T, H, D) attend to into theirs of `out` (T, H, D)."""


class PackedAttention(Protocol):
    """The same, but its keys and values lie one sequence after the other."""

    def takes(self, q: Tensor, cached: Tensor, cap: float) -> bool:
        """Whether it is made for such queries (T, H, D), keys and values, and a cap of scores."""

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, packed: Packed, *, scale: float, window: int
    ) -> Tensor:
        """What packed queries (Q, H, D) attend to in their keys and values (S, K, D): (Q, H, D)."""


def attend(
    q: Tensor,
    cache: Cache,
    layer: int,
    batch: AnyBatch,
    scoring: Scoring = Scoring(),
    native: Attention | None = None,
    prefill: PrefillAttention | None = None,
    packed: PackedAttention | None = None,
) -> Tensor:
    """Causal attention of the queries (T, H, D) over their own sequences: (T, H, D).

    Keys and values of the batch must be written already. Nothing outside a sequence is ever read into it.
    A native kernel takes the short spans, which are those that decode. Beside it another one takes the long
    ones: one for prefill, or one for packed prompts where pages lie anywhere.
    """
    is_native = native is not None and native.takes(q, cache.storage[:, layer])
    if cache.pages.consecutive and not is_native:
        return torch.cat(_attend_runs(q, cache, layer, batch.spans, scoring))
    attended = q.new_empty(q.shape)
    if native is not None and is_native:
        _attend_short(q, cache, layer, batch, scoring, native, attended)
        if prefill is not None and prefill.takes(q, cache.storage[:, layer]):
            _attend_long(q, cache, layer, batch, scoring, prefill, attended)
            return attended
    if not cache.pages.consecutive:
        if is_native and packed is not None and packed.takes(q, cache.storage[:, layer], scoring.cap):
            _attend_packed(q, cache, layer, batch, scoring, packed, attended)
        else:
            groups = batch.long_groups if is_native else batch.groups
            _attend_pages(q, cache, layer, groups, scoring, attended)
        return attended
    long = [span for span in batch.spans if not span.is_short]
    for span, heads in zip(long, _attend_runs(q, cache, layer, long, scoring), strict=True):
        attended[span.rows.start : span.rows.stop] = heads
    return attended


def _attend_short(
    q: Tensor,
    cache: Cache,
    layer: int,
    batch: AnyBatch,
    scoring: Scoring,
    native: Attention,
    attended: Tensor,
) -> None:
    """All short spans at once, into their rows of the result."""
    if not len(batch.seen.rows):
        return
    cached = cache.storage[:, layer]  # (2, K, pages, PAGE_TOKENS, D)
    scale = scoring.scale_of(q)
    native(q, cached, batch.seen, attended, scale=scale, window=scoring.window, cap=scoring.cap)


def _attend_long(
    q: Tensor,
    cache: Cache,
    layer: int,
    batch: AnyBatch,
    scoring: Scoring,
    prefill: PrefillAttention,
    attended: Tensor,
) -> None:
    """All long spans at once, into their rows of the result."""
    spans = batch.seen_spans
    if spans is None:
        return
    cached = cache.storage[:, layer]  # (2, K, pages, PAGE_TOKENS, D)
    scale = scoring.scale_of(q)
    prefill(q, cached, spans, attended, scale=scale, window=scoring.window, cap=scoring.cap)


def _attend_packed(
    q: Tensor,
    cache: Cache,
    layer: int,
    batch: AnyBatch,
    scoring: Scoring,
    attention: PackedAttention,
    attended: Tensor,
) -> None:
    """All long spans at once, into their rows of the result; their keys are read where the cache has them."""
    packed = batch.packed
    if packed is None:
        return
    scale = scoring.scale_of(q)
    keys, values = cache.keys_and_values(layer, packed.key_cells)  # (S, K, D) each
    found = attention(q[packed.rows], keys, values, packed, scale=scale, window=scoring.window)
    attended[packed.rows] = found


def _attend_runs(
    q: Tensor, cache: Cache, layer: int, spans: Sequence[Span], scoring: Scoring
) -> list[Tensor]:
    """Span by span (t, H, D) over views of the storage: on a CPU faster than a padded batch of copies."""
    kernel, window = _kernel(scoring), scoring.window
    queries = q.transpose(0, 1)[None]  # (1, H, T, D)
    keys, values = cache.view(layer)  # (1, K, N, D) each
    attended = []
    for span in spans:
        past = min(span.start, window - 1) if window else span.start
        first_cell, num_keys = span.first_cell + span.start - past, past + span.num_tokens
        mask = cache.mask(span.num_tokens, past, window) if span.num_tokens > 1 else None  # (t, S)
        heads = kernel(
            queries.narrow(2, span.first_row, span.num_tokens),  # (1, H, t, D)
            keys.narrow(2, first_cell, num_keys),  # (1, K, S, D)
            values.narrow(2, first_cell, num_keys),
            attn_mask=mask,
            scale=scoring.scale,
        )
        attended.append(heads[0].transpose(0, 1))  # (t, H, D)
    return attended


def _attend_pages(
    q: Tensor, cache: Cache, layer: int, groups: Sequence[SpanGroup], scoring: Scoring, attended: Tensor
) -> None:
    """Spans of one length at a time, their pages gathered into a padded batch."""
    kernel, window = _kernel(scoring), scoring.window
    for group in groups:
        queries = q[group.rows].transpose(1, 2)  # (B, H, t, D)
        keys, values = cache.gather(layer, group.page_table)  # (B, K, S, D)
        mask = cache.padding_mask(group.positions, num_keys=keys.shape[-2])  # (B, 1, t, S)
        padding = ~mask[:, :, -1, :, None]  # (B, 1, S, 1): what comes after the last token
        keys.masked_fill_(padding, 0)
        values.masked_fill_(padding, 0)
        if window:
            mask = cache.padding_mask(group.positions, keys.shape[-2], window)
        heads = kernel(queries, keys, values, attn_mask=mask, scale=scoring.scale)
        attended[group.rows] = heads.transpose(1, 2)  # (B, t, H, D)


def _kernel(scoring: Scoring) -> Callable[..., Tensor]:
    """What weighs the values (B, K, S, D) by how well keys fit queries (B, H, t, D): (B, H, t, D)."""
    if scoring.cap:
        return partial(_capped, cap=scoring.cap)
    return partial(scaled_dot_product_attention, enable_gqa=True)


def _capped(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None,
    scale: float | None,
    cap: float,
) -> Tensor:
    """torch's kernel, had it a cap for scores. Source: https://arxiv.org/abs/2408.00118"""
    B, H, t, D = q.shape
    _, K, S, _ = keys.shape
    grouped = q.reshape(B, K, H // K * t, D)  # the queries of a kv head, one below the other
    scores = (grouped @ keys.transpose(2, 3)).float()
    scores = scores.mul_((D**-0.5 if scale is None else scale) / cap).tanh_().mul_(cap)
    scores = scores.view(B, K, H // K, t, S)
    if attn_mask is not None:
        scores.masked_fill_(~attn_mask.unsqueeze(-3), float("-inf"))  # (1, t, S) or (B, 1, 1, t, S)
    weights = scores.softmax(dim=-1).to(values.dtype).view(B, K, -1, S)
    return (weights @ values).view(B, H, t, D)
