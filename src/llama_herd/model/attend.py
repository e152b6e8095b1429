"""attend: causal attention of a batch over the cache. The one seam for attention kernels.

Shapes: T tokens of the ragged batch, t tokens of a span, B spans, H heads, K kv heads, D head dim,
S cached length, N cells of the cache.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.batch import AnyBatch, Batch, Span, SpanGroup, StepBatch
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig

#: The scoring of Llama 2.
PLAIN = Scoring()


def layer_scoring(config: LlamaConfig, layer: int) -> Scoring:
    """The scoring of keys in a layer of a model."""
    return Scoring(config.attention_scale, config.window(layer), config.score_cap)


#: Which tokens a kernel is told to attend.
Told = TypeVar("Told", Seen, SeenSpans, contravariant=True)


class AttentionKernel(Protocol[Told]):
    """A kernel for the tokens of short spans, which are those that decode, or for long ones: prompts."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (T, H, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""

    def __call__(self, q: Tensor, cached: Tensor, told: Told, out: Tensor, scoring: Scoring, /) -> None:
        """Write what these rows of q (T, H, D) attend to into theirs of `out` (T, H, D).

        `cached` are a layer's keys and values (2, K, pages, PAGE_TOKENS, D).
        """


def attend(
    q: Tensor,
    cache: Cache,
    layer: int,
    batch: AnyBatch,
    scoring: Scoring = PLAIN,
    native: AttentionKernel[Seen] | None = None,
    prefill: AttentionKernel[SeenSpans] | None = None,
) -> Tensor:
    """Causal attention of the queries (T, H, D) over their own sequences: (T, H, D).

    Keys and values of the batch must be written already. Nothing outside a sequence is ever read into it.
    A native kernel takes the short spans, which are those that decode; beside it another one the long ones.
    """
    cached = cache.storage[:, layer]  # (2, K, pages, PAGE_TOKENS, D)
    if native is None or not native.takes(q, cached):
        return _attend_plainly(q, cache, layer, batch, scoring)
    if isinstance(batch, StepBatch):
        return _attend_step(q, cached, batch, scoring, native, prefill)
    attended = q.new_empty(q.shape)
    if len(batch.seen.rows):
        native(q, cached, batch.seen, attended, scoring)
    if batch.is_short:
        return attended
    if prefill is not None and prefill.takes(q, cached):
        prefill(q, cached, batch.seen_spans, attended, scoring)
    elif cache.pages.consecutive:
        long = batch.long_spans
        for span, heads in zip(long, _attend_runs(q, cache, layer, long, scoring), strict=True):
            attended[span.rows.start : span.rows.stop] = heads
    else:
        _attend_pages(q, cache, layer, batch.long_groups, scoring, attended)
    return attended


def _attend_step(
    q: Tensor,
    cached: Tensor,
    batch: StepBatch,
    scoring: Scoring,
    native: AttentionKernel[Seen],
    prefill: AttentionKernel[SeenSpans] | None,
) -> Tensor:
    """Attention of a batch told by slots. Without a kernel for prompts their tokens attend one by one."""
    if batch.is_short or prefill is None or not prefill.takes(q, cached):
        attended, seen = q.new_empty(q.shape), batch.each_seen
    else:
        attended, seen = q.new_zeros(q.shape), batch.seen  # what only fills the batch up is of no span
        prefill(q, cached, batch.seen_spans, attended, scoring)
    if len(seen.rows):
        native(q, cached, seen, attended, scoring)
    return attended


def _attend_plainly(q: Tensor, cache: Cache, layer: int, batch: AnyBatch, scoring: Scoring) -> Tensor:
    """Attention of all spans in plain torch."""
    if isinstance(batch, Batch) and cache.pages.consecutive:
        return torch.cat(_attend_runs(q, cache, layer, batch.spans, scoring))
    attended = q.new_empty(q.shape)
    _attend_pages(q, cache, layer, batch.groups, scoring, attended)
    return attended


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
    """The kernel that weighs values (B, K, S, D) by how well keys fit queries (B, H, t, D): (B, H, t, D)."""
    if scoring.cap:
        return partial(_capped_attention, cap=scoring.cap)
    return partial(scaled_dot_product_attention, enable_gqa=True)


def _capped_attention(
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
