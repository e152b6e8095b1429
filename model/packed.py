"""Packed: prompts that attend together, their tokens one behind the other and without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Packed:
    """Each sequence's queries see its own keys: those before them, which may be cached, and themselves.

    The last query of a sequence sees all its keys. Shapes: B sequences, Q queries, S keys of all.
    """

    rows: Tensor  # (Q,): which tokens of the batch
    key_cells: Tensor  # (S,): where the cache keeps keys and values
    query_ends: Tensor  # (B + 1,) int32, from 0: where each sequence's queries end
    key_ends: Tensor  # (B + 1,) int32
    max_queries: int
    max_keys: int

    @classmethod
    def in_order(cls, lengths: Sequence[tuple[int, int]], device: torch.device | str) -> Self:
        """Sequences of so many keys before their queries, and so many queries; their keys lie in order."""
        queries = [0, *(num_queries for _, num_queries in lengths)]
        keys = [0, *(past + num_queries for past, num_queries in lengths)]
        return cls(
            rows=torch.arange(sum(queries), device=device),
            key_cells=torch.arange(sum(keys), device=device),
            query_ends=torch.tensor(queries, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32),
            key_ends=torch.tensor(keys, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32),
            max_queries=max(queries),
            max_keys=max(keys),
        )
