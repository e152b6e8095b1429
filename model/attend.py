"""attend: causal attention of a batch over the cache. The one seam for attention kernels.

Shapes: T tokens of the ragged batch, t tokens of a span, B spans, H heads, K kv heads, D head dim,
S cached length, N cells of the cache.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from llama_herd.model.batch import GROUP_KEYS, GROUP_SCORES, SPAN_TOKENS, Batch
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, pages_for


def attend(q: Tensor, cache: Cache, layer: int, batch: Batch) -> Tensor:
    """Causal attention of the queries (T, H, D) over their own sequences: (T, H, D).

    Keys and values of the batch must be written already. Nothing outside a sequence is ever read into it.
    """
    if cache.pages.consecutive:
        return _attend_runs(q, cache, layer, batch)
    return _attend_pages(q, cache, layer, batch)


def attend_bytes(config: LlamaConfig, dtype: torch.dtype, max_length: int, *, consecutive: bool) -> int:
    """The most that `attend` takes besides its result, when no sequence is longer than `max_length`."""
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    longest = pages_for(max_length) * PAGE_TOKENS
    if consecutive:  # one span at a time: its mask as numbers, and its keys and values once more
        return dtype.itemsize * (SPAN_TOKENS * longest + 2 * longest * K * D)
    num_keys, num_scores = max(GROUP_KEYS, longest), max(GROUP_SCORES, SPAN_TOKENS * longest)
    gathered = 2 * num_keys * K * D * dtype.itemsize
    mask = num_scores * (1 + dtype.itemsize)
    if H == K:
        return gathered + mask
    # Grouped queries with a mask: torch repeats keys and values, in float32 too, and keeps the scores thrice.
    repeated = 2 * num_keys * H * D * (dtype.itemsize + torch.float32.itemsize)
    return gathered + mask + repeated + 3 * num_scores * H * torch.float32.itemsize


def _attend_runs(q: Tensor, cache: Cache, layer: int, batch: Batch) -> Tensor:
    """Span by span over views of the storage: on a CPU faster than copying keys into a padded batch."""
    queries = q.transpose(0, 1)[None]  # (1, H, T, D)
    keys, values = cache.view(layer)  # (1, K, N, D) each
    attended = []
    for span in batch.spans:
        mask = cache.mask(span.num_tokens, span.start) if span.num_tokens > 1 else None  # (t, S)
        heads = scaled_dot_product_attention(
            queries.narrow(2, span.first_row, span.num_tokens),  # (1, H, t, D)
            keys.narrow(2, span.first_cell, span.stop),  # (1, K, S, D)
            values.narrow(2, span.first_cell, span.stop),
            attn_mask=mask,
            enable_gqa=True,
        )
        attended.append(heads)  # (1, H, t, D)
    return torch.cat(attended, dim=2)[0].transpose(0, 1)  # (T, H, D)


def _attend_pages(q: Tensor, cache: Cache, layer: int, batch: Batch) -> Tensor:
    """Spans of one length at a time, their pages gathered into a padded batch."""
    attended = torch.empty_like(q)
    for group in batch.groups:
        queries = q[group.rows].transpose(1, 2)  # (B, H, t, D)
        keys, values = cache.gather(layer, group.page_table)  # (B, K, S, D)
        mask = cache.padding_mask(group.positions, num_keys=keys.shape[-2])  # (B, 1, t, S)
        padding = ~mask[:, :, -1, :, None]  # (B, 1, S, 1): what the last token does not see
        keys.masked_fill_(padding, 0)
        values.masked_fill_(padding, 0)
        heads = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        attended[group.rows] = heads.transpose(1, 2)  # (B, t, H, D)
    return attended
