"""DecodeBatch: one token of each of B sequences, all told by tensors of the device.

Shapes: B tokens, N slots, P pages of a sequence.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Seen
from llama_herd.model.batch import Batch, Span, SpanGroup


@dataclass(frozen=True, eq=False)
class DecodeBatch:
    """A batch of single tokens in tensors of the device, without numbers on the host: it can be captured."""

    ids: Tensor  # (B,)
    positions: Tensor  # (B,)
    cells: Tensor  # (B,)
    slots: Tensor  # (B,): the sequences' rows of `page_table`
    tables: Tensor  # (B,): where in `pages` those of each sequence begin
    pages: Tensor  # (any,): holds all page tables, among other things
    page_table: Tensor  # (N, P)
    spans: ClassVar[tuple[Span, ...]] = ()
    is_short: ClassVar[bool] = True

    @cached_property
    def logit_rows(self) -> Tensor:
        """The rows that get logits: all of them."""
        return torch.arange(len(self.ids), device=self.ids.device)

    @cached_property
    def groups(self) -> tuple[SpanGroup, ...]:
        """The tokens in one group, for attention in plain torch."""
        rows, positions = self.logit_rows.unsqueeze(-1), self.positions.unsqueeze(-1)  # (B, 1) each
        return (SpanGroup(rows, positions, self.page_table[self.slots]),)

    @cached_property
    def seen(self) -> Seen:
        return Seen(self.logit_rows, self.positions + 1, self.tables, self.pages)


AnyBatch: TypeAlias = Batch | DecodeBatch
