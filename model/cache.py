"""Cache: the one unified cache. Keys and values of all sequences, RoPE tables, masks, page ledger.

Shapes: T tokens of the ragged batch, t tokens of a span, B spans, K kv heads, D head dim, S cached length,
P pages, N cells (tokens of all pages).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.batch import SPAN_TOKENS, Batch
from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.prefix_cache import Copy, PrefixCache


class Rope(NamedTuple):
    """How far RoPE turns each token, one row a token, the same for every head."""

    cos: Tensor  # (T, 1, D) float32
    sin: Tensor  # (T, 1, D) float32, negative in the first half


class KeysAndValues(NamedTuple):
    """Of one layer, of the same tokens."""

    keys: Tensor  # (B, K, S, D)
    values: Tensor  # (B, K, S, D)


class Cache:
    """All state of generation; the model itself is weights alone. Nothing in it ever grows.

    Keys and values lie in one storage, allocated once: [2, layers, kv_heads, pages, PAGE_TOKENS, head_dim].
    It holds whatever was there before: nothing is read but what was written, and on a CPU a page takes no
    memory until then. `pages` says which sequence holds what; on a CPU each holds neighbours.
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
    ) -> None:
        """No sequence is longer than `max_length`; None: than the model was made for."""
        self.device = torch.device(device)
        self.pages = Pages(num_pages, consecutive=self.device.type == "cpu")
        self.prefixes = PrefixCache(self.pages, is_on=keeps_prefixes)
        shape = (2, config.num_layers, config.num_kv_heads, num_pages, PAGE_TOKENS, config.head_dim)
        self.storage = torch.empty(shape, device=self.device, dtype=dtype)
        self._by_cell = self.storage.flatten(3, 4)  # (2, layers, K, N, D)
        self._max_length = min(max_length or config.context_length, num_pages * PAGE_TOKENS)
        self._rope = _rope_tables(config, self._max_length).to(self.device)  # (2, S, 1, D)
        self._key_positions = torch.arange(self._max_length + PAGE_TOKENS, device=self.device)  # (S,)
        self._causal = _causal_table(self._max_length) if self.pages.consecutive else None

    @staticmethod
    def bytes_per_token(config: LlamaConfig, dtype: torch.dtype) -> int:
        """Bytes that the keys and values of one token take, in all layers."""
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize

    @staticmethod
    def table_bytes(config: LlamaConfig, max_length: int, *, consecutive: bool) -> int:
        """Bytes of the RoPE tables and of what masks are made of, for sequences up to `max_length`."""
        rope = 2 * max_length * config.head_dim * torch.float32.itemsize
        positions = (max_length + PAGE_TOKENS) * torch.int64.itemsize
        return rope + positions + (SPAN_TOKENS * (max_length + SPAN_TOKENS) if consecutive else 0)

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage of keys and values."""
        return self.storage.nbytes

    def write(self, layer: int, keys: Tensor, values: Tensor, batch: Batch) -> None:
        """Keep the keys and values (T, K, D) of a batch, each token in its cell."""
        self._by_cell[0, layer].index_copy_(1, batch.cells, keys.transpose(0, 1))  # (K, N, D)
        self._by_cell[1, layer].index_copy_(1, batch.cells, values.transpose(0, 1))

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Give pages the content of others, in all layers; they may overlap."""
        if copies:
            sources, targets = map(list, zip(*copies, strict=True))
            for layer in self.storage.unbind(1):  # what lies between the two is a layer's, not the cache's
                layer[:, :, targets] = layer[:, :, sources]

    def view(self, layer: int) -> KeysAndValues:
        """Views of all cells (1, K, N, D). With consecutive pages a sequence is a range of them."""
        keys, values = self._by_cell[:, layer, None]
        return KeysAndValues(keys, values)

    def gather(self, layer: int, page_table: Tensor) -> KeysAndValues:
        """Copies of the pages in a table (B, P), as (B, K, P * PAGE_TOKENS, D)."""
        B, _ = page_table.shape
        _, _, K, _, _, D = self.storage.shape
        pages = self.storage[:, layer].flatten(3, 4)  # (2, K, pages, PAGE_TOKENS * D)
        copies = pages.index_select(2, page_table.flatten())  # (2, K, B * P, PAGE_TOKENS * D)
        keys, values = copies.view(2, K, B, -1, D).transpose(1, 2)  # (B, K, S, D)
        return KeysAndValues(keys, values)

    def rope(self, positions: Tensor) -> Rope:
        """The rows of the RoPE tables for tokens at `positions` (T,)."""
        cos, sin = self._rope[:, positions]
        return Rope(cos, sin)

    def mask(self, num_tokens: int, past: int) -> Tensor:
        """The keys that each of `num_tokens` queries sees after `past` others: bool (t, S), a view.

        Query i stands at position past + i and sees the keys up to itself.
        """
        assert self._causal is not None, "made for runs of pages alone"
        first_key = self._max_length - past
        return self._causal[:num_tokens, first_key : first_key + past + num_tokens]

    def padding_mask(self, positions: Tensor, num_keys: int) -> Tensor:
        """Which of `num_keys` keys queries at `positions` (B, t) see: bool (B, 1, t, S)."""
        return (self._key_positions[:num_keys] <= positions.unsqueeze(-1)).unsqueeze(1)


def _rope_tables(config: LlamaConfig, max_length: int) -> Tensor:
    """cos and sin of position * base^(-2i/D) for the half-split layout, float32 (2, S, 1, D).

    The second half repeats the first, and sin carries the sign, so that x turns as x * cos + swap(x) * sin.
    Made on the CPU: every device then turns by the same bits.
    Source: RoFormer, https://arxiv.org/abs/2104.09864
    """
    exponents = torch.arange(0, config.rope_dim, 2).float() / config.rope_dim
    speeds = config.rope_base**-exponents  # (D / 2,)
    angles = torch.outer(torch.arange(max_length).float(), speeds)  # (S, D / 2)
    half = config.head_dim // 2
    table = torch.empty(2, max_length, 1, config.head_dim)
    table[0, :, 0, :half] = table[0, :, 0, half:] = angles.cos()
    table[1, :, 0, half:] = angles.sin_()
    torch.neg(table[1, :, 0, half:], out=table[1, :, 0, :half])
    return table


def _causal_table(longest_past: int) -> Tensor:
    """Every causal mask at once, bool (SPAN_TOKENS, longest_past + SPAN_TOKENS).

    A mask depends only on how far a key stands from a query, so the mask after any past is a window of this
    table: column c is the key at position c - longest_past, counted from the first query.
    """
    queries = torch.arange(SPAN_TOKENS)
    keys = torch.arange(-longest_past, SPAN_TOKENS)
    return keys <= queries.unsqueeze(1)
