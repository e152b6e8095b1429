"""Pooler: what the tokens of texts come to, summed up over steps, becomes their vectors.

Shapes: R tokens that count, C hidden size, N texts, W width of a vector.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence as Rows
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from llama_herd.model.heads import Head
from llama_herd.model.llama2 import RMSNorm
from llama_herd.worker.engine.runner import PartReading, Reading, Row, VectorReading
from llama_herd.worker.engine.sequence import Sequence


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
        sums = _sums(rows, self.norm(hidden).double())  # (N, C)
        complete = [number for number, row in enumerate(rows) if row.is_complete]
        vectors = self._vectors({number: rows[number].sequence for number in complete}, sums)
        return [
            VectorReading(row, vectors[number]) if row.is_complete else PartReading(row, sums[number])
            for number, row in enumerate(rows)
        ]

    def _vectors(self, complete: Mapping[int, Sequence], sums: Tensor) -> dict[int, bytes | None]:
        """The vectors of whole texts by their numbers in `sums`: those of one length together."""
        numbers_of: dict[int | None, list[int]] = defaultdict(list)
        for number, sequence in complete.items():
            numbers_of[sequence.num_dimensions].append(number)
        vectors = dict[int, bytes | None]()
        for dimensions, numbers in numbers_of.items():
            counts = sums.new_tensor([complete[number].num_pooled for number in numbers]).unsqueeze(-1)
            means = (sums[numbers] / counts).float()  # (N, C)
            vectors |= zip(numbers, _bytes_of(self.head(means, dimensions).cpu()), strict=True)
        return vectors


def _sums(rows: Rows[Row], states: Tensor) -> Tensor:
    """The sum (N, C) of each row's states (R, C), and of those that its text had before."""
    counts = [row.num_logits for row in rows]
    if any(count != 1 for count in counts):
        numbers = torch.arange(len(rows)).repeat_interleave(torch.tensor(counts)).to(states.device)  # (R,)
        states = states.new_zeros(len(rows), states.shape[-1]).index_add_(0, numbers, states)  # (N, C)
    for number, row in enumerate(rows):
        if row.sequence.pooled is not None:
            states[number] += cast(Tensor, row.sequence.pooled)
    return states


def _bytes_of(vectors: Tensor) -> list[bytes | None]:
    """Vectors as float32, little-endian; None for one with NaN or infinity."""
    numbers, is_finite = vectors.numpy().astype("<f4", copy=False), vectors.isfinite().all(dim=-1).tolist()
    return [one.tobytes() if is_whole else None for one, is_whole in zip(numbers, is_finite, strict=True)]
