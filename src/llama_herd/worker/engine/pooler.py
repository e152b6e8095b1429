"""Pooler: what the tokens of texts come to, summed up over steps, becomes their vectors.

Shapes: R tokens that count, C hidden size, N texts, W width of a vector.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from llama_herd.model.llama2 import RMSNorm
from llama_herd.model.vector_head import Head
from llama_herd.worker.engine.runner import Reading
from llama_herd.worker.engine.scheduler import Row


@dataclass(frozen=True, eq=False)
class Pooler:
    """Makes vectors of texts by what is behind the last layer.

    Sums are kept in float64: so they show neither the order of additions nor where a text was cut.
    """

    norm: RMSNorm
    head: Head

    def readings(self, rows: Rows[Row], hidden: Tensor) -> list[Reading]:
        """What rows with texts have found: a vector of each that is complete, a sum of each other.

        hidden: (R, C), of the tokens that count, row after row.
        """
        states = self.norm(hidden).double()
        sums, first = list[Tensor](), 0
        for row in rows:
            total = states[first : first + row.num_logits].sum(dim=0)  # (C,)
            if row.sequence.pooled is not None:
                total += cast(Tensor, row.sequence.pooled)
            sums.append(total)
            first += row.num_logits
        complete = [(row, total) for row, total in zip(rows, sums, strict=True) if row.is_complete]
        vectors = iter(self._vectors(complete))
        return [
            Reading(row, [], None, vector=next(vectors))
            if row.is_complete
            else Reading(row, [], None, pooled=total)
            for row, total in zip(rows, sums, strict=True)
        ]

    def _vectors(self, complete: Rows[tuple[Row, Tensor]]) -> list[bytes]:
        """The vectors of whole texts by their sums (C,)."""
        if not complete:
            return []
        means = torch.stack([total / row.sequence.num_pooled for row, total in complete])  # (N, C)
        whole = self.head(means.float()).cpu()  # (N, W)
        return [
            _bytes_of(self.head.cut(vector, row.sequence.num_dimensions))
            for vector, (row, _) in zip(whole, complete, strict=True)
        ]


def _bytes_of(vector: Tensor) -> bytes:
    """A vector as float32, little-endian; nothing of one with NaN or infinity."""
    numbers = vector.numpy() if vector.isfinite().all() else vector[:0].numpy()
    return numbers.astype("<f4").tobytes()
