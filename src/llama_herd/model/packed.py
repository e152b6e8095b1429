"""Packed: prompts that attend together, their tokens one behind the other and without padding."""

from dataclasses import dataclass

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

    def keys_and_values(self, cached: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of its own (S, K, D) from those of a layer (2, K, pages, PAGE_TOKENS, D)."""
        keys, values = (self._gathered(part) for part in cached.flatten(2, 3))
        return keys, values

    def _gathered(self, numbers: Tensor) -> Tensor:
        """Copies (S, K, D) of its own cells (K, cells, D).

        torch finds the place of each number by divisions: so eight bytes are one here, and keys are taken
        without values, whose distance does not fit into 32 bits.
        """
        words = numbers.view(torch.int64).index_select(1, self.key_cells)
        return words.view(numbers.dtype).transpose(0, 1)
