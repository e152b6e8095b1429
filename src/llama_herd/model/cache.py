"""Cache: the one unified cache. Keys and values of all sequences, RoPE tables, masks, page ledger.

Shapes: T tokens of the ragged batch, t tokens of a span, B spans, K kv heads, D head dim, S cached length,
P pages, N cells (tokens of all pages).
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.batch import AnyBatch
from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.prefix_cache import PageCopy, PrefixCache
from llama_herd.model.shape.rope_scaling import UNSCALED, RopeScaling
from llama_herd.model.sizes import longest_past
from llama_herd.model.tiling import SPAN_TOKENS
from llama_herd.model.upload import Send, upload


class Rope(NamedTuple):
    """Rotations of RoPE: cos and sin, one row a token, the same for every head."""

    cos: Tensor  # (T, 1, D) float32
    sin: Tensor  # (T, 1, D) float32, negative in the first half


class Cache:
    """All state of generation; the model itself is weights alone. Nothing in it ever grows.

    Keys and values lie in one storage, allocated once: [2, layers, kv_heads, pages, PAGE_TOKENS, head_dim].
    It holds whatever was there before: nothing is read but what was written, and on a CPU a page takes no
    memory until then. `pages` says which sequence holds what; on a CPU each holds neighbours. Where pages lie
    anywhere there is one more, `trash_page`, for tokens of no sequence.
    """

    def __init__(
        self,
        config: LlamaConfig,
        num_pages: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        max_length: int | None = None,
        keeps_prefixes: bool = True,
        consecutive: bool | None = None,
    ) -> None:
        """Allocate a cache. No sequence is longer than `max_length`; None: than the model was made for.

        `consecutive`: whether a sequence holds neighbours; None: on a CPU.
        """
        self.device = torch.device(device)
        if consecutive is None:
            consecutive = self.device.type == "cpu"
        self.pages = Pages(num_pages, consecutive=consecutive)
        self.trash_page = num_pages
        self.prefixes = PrefixCache(self.pages, is_on=keeps_prefixes)
        num_stored = num_pages if consecutive else num_pages + 1
        shape = (2, config.num_layers, config.num_kv_heads, num_stored, PAGE_TOKENS, config.head_dim)
        self.storage = torch.empty(shape, device=self.device, dtype=dtype)
        self.storage[:, :, :, num_pages:] = 0  # trash goes through the model too
        self._by_cell = self.storage.flatten(3, 4)  # (2, layers, K, N, D)
        self.max_length = min(max_length or config.context_length, num_pages * PAGE_TOKENS)
        tables = _rope_tables(config, self.max_length)  # (2, S, 1, D) each
        self._ropes = [table.to(self.device) for table in tables]
        self._key_positions = torch.arange(self.max_length + PAGE_TOKENS, device=self.device)  # (S,)
        windows = {0, *config.windows} if self.pages.consecutive else ()
        self._masks = {window: _mask_table(self.max_length, window) for window in windows}

    def write(self, layer: int, keys: Tensor, values: Tensor, batch: AnyBatch) -> None:
        """Keep the keys and values (T, K, D) of a batch, each token in its cell."""
        self._by_cell[0, layer].index_copy_(1, batch.cells, keys.transpose(0, 1))  # (K, N, D)
        self._by_cell[1, layer].index_copy_(1, batch.cells, values.transpose(0, 1))

    def copy_pages(self, copies: Sequence[PageCopy], send: Send | None = None) -> None:
        """Give pages the content of others, in all layers; they may overlap."""
        if copies:
            send = send or partial(upload, device=self.device)
            sources, targets = map(send, zip(*copies, strict=True))
            for layer in self.storage.unbind(1):  # what lies between the two is a layer's, not the cache's
                layer[:, :, targets] = layer[:, :, sources]

    def view(self, layer: int) -> Tensor:
        """A view of all cells (2, 1, K, N, D). With consecutive pages a sequence is a range of them."""
        return self._by_cell[:, layer, None]

    def gather(self, layer: int, page_table: Tensor) -> Tensor:
        """Copies of the pages in a table (B, P), as (2, B, K, P * PAGE_TOKENS, D)."""
        B, _ = page_table.shape
        _, _, K, _, _, D = self.storage.shape
        pages = self.storage[:, layer].flatten(3, 4)  # (2, K, pages, PAGE_TOKENS * D)
        copies = pages.index_select(2, page_table.flatten())  # (2, K, B * P, PAGE_TOKENS * D)
        return copies.view(2, K, B, -1, D).transpose(1, 2)  # (2, B, K, S, D)

    def rope(self, positions: Tensor, *, local: bool = False) -> Rope:
        """The rows of the RoPE tables for tokens at `positions` (T,); `local`: of layers with a window."""
        cos, sin = self._ropes[local][:, positions]
        return Rope(cos, sin)

    @property
    def rope_table(self) -> Rope:
        """The rows of all positions (S, 1, D), up to the longest sequence."""
        cos, sin = self._ropes[0]
        return Rope(cos, sin)

    def mask(self, num_tokens: int, past: int, window: int = 0) -> Tensor:
        """The keys that each of `num_tokens` queries sees after `past` others: bool (t, S), a view.

        Query i stands at position past + i and sees the keys up to itself; of a window only the last ones.
        More keys before than a window reaches need not be given.
        """
        first_key = longest_past(self.max_length, window) - past
        assert first_key >= 0, f"{past} keys before a window of {window}"
        return self._masks[window][:num_tokens, first_key : first_key + past + num_tokens]

    def padding_mask(self, positions: Tensor, num_keys: int, window: int = 0) -> Tensor:
        """Which of `num_keys` keys queries at `positions` (B, t) see: bool (B, 1, t, S)."""
        keys, queries = self._key_positions[:num_keys], positions.unsqueeze(-1)
        seen = keys <= queries
        if window:
            seen &= keys > queries - window
        return seen.unsqueeze(1)


def _rope_tables(config: LlamaConfig, max_length: int) -> list[Tensor]:
    """The table of all layers; where layers with a window have a base of their own, theirs as the second."""
    tables = [_rope_table(config, config.rope_base, config.rope_scaling, max_length)]
    if config.local_rope_base:
        tables.append(_rope_table(config, config.local_rope_base, UNSCALED, max_length))
    return tables


def _rope_table(config: LlamaConfig, base: float, scaling: RopeScaling, max_length: int) -> Tensor:
    """cos and sin of position * base^(-2i/D) for the half-split layout, float32 (2, S, 1, D).

    The second half repeats the first, and sin carries the sign, so that x turns as x * cos + swap(x) * sin.
    Made on the CPU: every device then turns by the same bits.
    Source: RoFormer, https://arxiv.org/abs/2104.09864
    """
    exponents = torch.arange(0, config.rope_dim, 2).float() / config.rope_dim
    speeds = base**-exponents  # (D / 2,)
    if scaling.divisors:
        speeds /= torch.tensor(scaling.divisors)
    angles = torch.outer(torch.arange(max_length).float(), speeds)  # (S, D / 2)
    half = config.head_dim // 2
    table = torch.empty(2, max_length, 1, config.head_dim)
    table[0, :, 0, :half] = table[0, :, 0, half:] = angles.cos()
    table[1, :, 0, half:] = angles.sin_()
    torch.neg(table[1, :, 0, half:], out=table[1, :, 0, :half])
    return table.mul_(scaling.gain) if scaling.gain != 1 else table


def _mask_table(max_length: int, window: int) -> Tensor:
    """Every mask of a window at once, bool (SPAN_TOKENS, longest past + SPAN_TOKENS).

    A mask depends only on how far a key stands from a query, so the mask after any past is a part of this
    table: column c is the key at position c - longest past, counted from the first query.
    """
    queries = torch.arange(SPAN_TOKENS).unsqueeze(1)
    keys = torch.arange(-longest_past(max_length, window), SPAN_TOKENS)
    seen = keys <= queries
    return seen & (keys > queries - window) if window else seen
