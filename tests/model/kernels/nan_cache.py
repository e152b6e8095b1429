"""Sequences in a paged cache that is NaN but for their keys and values, so that it shows who reads more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from llama_herd.model.pages import PAGE_TOKENS, pages_for


@dataclass(frozen=True, eq=False)
class NanCache:
    storage: Tensor  # (2, K, pages, PAGE_TOKENS, D)
    tables: Tensor  # where in `pages` those of each sequence begin
    pages: Tensor  # of all sequences, each in order

    @classmethod
    def of(
        cls, lengths: Sequence[int], dtype: torch.dtype, *, kv_heads: int, head_dim: int, scattered: bool
    ) -> Self:
        counts = [pages_for(length) for length in lengths]
        num_pages = sum(counts) + 3
        pages = torch.randperm(num_pages) if scattered else torch.arange(num_pages)
        tables = torch.tensor([0, *counts]).cumsum(0)[:-1]
        storage = torch.full((2, kv_heads, num_pages, PAGE_TOKENS, head_dim), torch.nan, dtype=dtype)
        cache = cls(storage, tables, pages)
        for table, length in zip(tables, lengths, strict=True):
            numbers = torch.randn(2, kv_heads, length, head_dim)
            storage[cache.index(table, range(length))] = numbers.to(dtype)
        return cache

    def index(self, table: Tensor, positions: Sequence[int]) -> tuple[slice, slice, Tensor, Tensor]:
        """Of the cells in `storage` that hold these positions of the sequence with this table."""
        at = torch.tensor(positions)
        return slice(None), slice(None), self.pages[table + at // PAGE_TOKENS], at % PAGE_TOKENS

    def exact(self, table: Tensor, positions: Sequence[int]) -> Tensor:
        """Keys and values as float64: (2, K, positions, D)."""
        return self.storage[self.index(table, positions)].double()
