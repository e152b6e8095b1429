"""Draws one token for each row from what its slot holds: no number comes from the host, none goes there.

The same rules as `sampler.py`, in a form that can be captured: no shape depends on a value.

Letters: B rows, V vocabulary, S longest sequence.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.sampling.logits_processors import MINUS_INFINITY
from llama_herd.worker.engine.sampling.noise import gumbel, mixed
from llama_herd.worker.engine.sampling.penalties import is_penalising
from llama_herd.worker.engine.sampling.row import LEAST_TEMPERATURE, NO_TOKEN
from llama_herd.worker.engine.slots import (
    FREQUENCY,
    HASH,
    MIN_P,
    NUM_PROMPT,
    PRESENCE,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WINDOW,
    SlotRows,
    Slots,
)

#: How much a token of the prompt counts: more than a text has tokens.
GIVEN = 1 << 32


class Drawing(NamedTuple):
    """What a step's draw has to do. A row draws the same token by more than it needs."""

    is_random: bool = False
    is_sorted: bool = False
    is_penalised: bool = False

    @classmethod
    def of(cls, params: SamplingParams) -> Self:
        is_random = params.temperature >= LEAST_TEMPERATURE
        is_sorted = is_random and (params.top_k > 0 or params.top_p < 1)
        return cls(is_random, is_sorted, is_penalising(params))

    def __or__(self, other: Self) -> Self:
        return type(self)(*(a or b for a, b in zip(self, other, strict=True)))


def penalised(logits: Tensor, slots: Slots, rows: SlotRows) -> Tensor:
    """The logits (B, V) after repetition, presence and frequency penalties.

    Which tokens count, and how often, is found anew from the ids before the one to be drawn.
    """
    ids, end = slots.ids(rows.slots), rows.next_positions.unsqueeze(-1)  # (B, S), (B, 1)
    at = torch.arange(ids.shape[-1], device=ids.device)
    counts_at = (at < end) & (at >= end - rows.integers(WINDOW).unsqueeze(-1))  # (B, S)
    weights = torch.where(at < rows.integers(NUM_PROMPT).unsqueeze(-1), GIVEN, 1) * counts_at
    totals = torch.zeros(logits.shape, dtype=torch.int64, device=logits.device).scatter_add_(-1, ids, weights)
    counts = totals.gather(-1, ids)  # (B, S)
    num_drawn = counts % GIVEN
    presence, frequency = rows.reals(PRESENCE).unsqueeze(-1), rows.reals(FREQUENCY).unsqueeze(-1)
    addends = torch.where(num_drawn > 0, -presence - frequency * num_drawn, 0.0).float()
    was, repetition = logits.gather(-1, ids), rows.column(REPETITION)
    now = torch.where(was > 0, was / repetition, was * repetition) + addends
    return logits.scatter(-1, ids, torch.where(counts > 0, now, was))


def drawn(logits: Tensor, rows: SlotRows, drawing: Drawing) -> Tensor:
    """One token for each row of logits (B, V) that all rules have changed: (B,).

    A row whose logits contain NaN or infinity gets NO_TOKEN.
    """
    largest, ids = logits.max(dim=-1)  # (B,) each; NaN counts as the largest
    if drawing.is_random:
        is_random = rows.reals(TEMPERATURE) >= LEAST_TEMPERATURE
        ids = torch.where(is_random, _drawn_at_random(logits, rows, drawing.is_sorted), ids)
    return ids.masked_fill(~largest.isfinite(), NO_TOKEN)


def _drawn_at_random(logits: Tensor, rows: SlotRows, is_sorted: bool) -> Tensor:
    """Gumbel-max over the tokens that the filters leave: (B,)."""
    temperature = rows.column(TEMPERATURE)
    scaled = logits / torch.where(temperature >= LEAST_TEMPERATURE, temperature, 1.0)  # (B, V)
    too_unlikely = scaled - scaled.amax(dim=-1, keepdim=True) < rows.column(MIN_P).log()
    scaled = scaled.masked_fill(too_unlikely, MINUS_INFINITY)
    token_ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
    if is_sorted:
        scaled, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
        scaled = _within_nucleus(_within_top_k(scaled, rows), rows)
    position = rows.next_positions - rows.integers(NUM_PROMPT)  # in the output
    prefixes = mixed(rows.integers(HASH).to(torch.int32), position.to(torch.int32)).unsqueeze(-1)  # (B, 1)
    winners = (scaled + gumbel(prefixes, token_ids.to(torch.int32))).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)


def _within_top_k(values: Tensor, rows: SlotRows) -> Tensor:
    """Of values in order the first k; k = 0 keeps all."""
    ranks, top_k = torch.arange(values.shape[-1], device=values.device), rows.integers(TOP_K).unsqueeze(-1)
    return values.masked_fill((ranks >= top_k) & (top_k > 0), MINUS_INFINITY)


def _within_nucleus(values: Tensor, rows: SlotRows) -> Tensor:
    """Of values in order the fewest whose probability reaches top_p."""
    probs, top_p = values.softmax(dim=-1), rows.column(TOP_P)
    before = probs.cumsum(dim=-1) - probs
    return values.masked_fill((before >= top_p) & (top_p < 1), MINUS_INFINITY)
