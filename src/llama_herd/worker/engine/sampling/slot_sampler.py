"""Draws one token for each row from what its slot holds: no number comes from the host, none goes there.

The same draw as in `sampler.py`, in a form that can be captured: no shape depends on a value.

Letters: B rows, V vocabulary.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.worker.engine.sampling.noise import gumbel, mixed
from llama_herd.worker.engine.sampling.parameters import (
    common_floor,
    filter_in_order,
    is_sorting,
    mask_below_floor,
)
from llama_herd.worker.engine.sampling.row import LEAST_TEMPERATURE, NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.rules import is_ruled_in_slots
from llama_herd.worker.engine.slots import HASH, NUM_PROMPT, SlotRows


class Drawing(NamedTuple):
    """The work of a step's draw. Work that a row does not need leaves its drawn token the same."""

    is_random: bool = False
    is_sorted: bool = False
    is_ruled: bool = False

    @classmethod
    def of(cls, row: SamplingRow) -> Self:
        return cls(row.is_random, row.is_random and is_sorting(row.params), is_ruled_in_slots(row))

    def __or__(self, other: Self) -> Self:
        return type(self)(*(a or b for a, b in zip(self, other, strict=True)))


def drawn(logits: Tensor, rows: SlotRows, drawing: Drawing) -> Tensor:
    """One token for each row of logits (B, V) that all rules have changed: (B,).

    A row whose logits contain NaN or infinity gets NO_TOKEN.
    """
    largest, ids = logits.max(dim=-1)  # (B,) each; NaN counts as the largest
    if drawing.is_random:
        is_random = rows.column("temperature").squeeze(-1) >= LEAST_TEMPERATURE
        ids = torch.where(is_random, _drawn_at_random(logits, rows, drawing.is_sorted), ids)
    return ids.masked_fill(~largest.isfinite(), NO_TOKEN)


def _drawn_at_random(logits: Tensor, rows: SlotRows, is_sorted: bool) -> Tensor:
    """Gumbel-max over the tokens that the filters leave: (B,)."""
    asked = rows.column("temperature")
    temperature = torch.where(asked >= LEAST_TEMPERATURE, asked, 1.0)  # (B, 1)
    scaled = mask_below_floor(logits / temperature, common_floor(logits, temperature, rows.numbers))  # (B, V)
    token_ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
    if is_sorted:
        scaled, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
        scaled = filter_in_order(scaled, rows.numbers)
    position = rows.next_positions - rows.integers(NUM_PROMPT)  # in the output
    prefixes = mixed(rows.integers(HASH).to(torch.int32), position.to(torch.int32)).unsqueeze(-1)  # (B, 1)
    winners = (scaled + gumbel(prefixes, token_ids.to(torch.int32))).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)
