"""What a job's wishes and its text so far do to its logits, before a token is drawn.

Letters: B rows, V vocabulary, N entries over all rows. Rows are told apart by index, so that each rule is a
few operations for the whole batch, and rows that do not use it pay nothing.
"""

from collections.abc import Iterable, Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.worker.draw import Draw

MINUS_INFINITY = float("-inf")


class Cells(NamedTuple):
    """Places in the logits, with a number for each."""

    rows: Tensor  # (N,)
    tokens: Tensor  # (N,)
    values: Tensor  # (N,) float32

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, float]], device: torch.device) -> "Cells | None":
        """Cells of (row, token, value); None when there are none."""
        found = list(entries)
        if not found:
            return None
        rows, tokens, values = zip(*found, strict=True)
        places = upload([rows, tokens], device)
        return cls(places[0], places[1], upload(values, device, torch.float32))


def apply_rules(logits: Tensor, draws: Rows[Draw]) -> Tensor:
    """Penalties, then biases, then tokens that may not come yet: (B, V), a copy if anything changes.

    Repetition penalty (https://arxiv.org/abs/1909.05858): a positive logit is divided by it, a negative one
    multiplied; it looks at prompt and output. Frequency and presence penalties look at the output only.
    """
    if all(draw.is_plain for draw in draws):
        return logits
    logits = logits.clone()
    _penalise_repetition(logits, draws)
    _penalise_frequency(logits, draws)
    _add_biases(logits, draws)
    _hold_back_ends(logits, draws)
    return logits


def _penalise_repetition(logits: Tensor, draws: Rows[Draw]) -> None:
    cells = Cells.of(
        (
            (row, token, draw.params.repetition_penalty)
            for row, draw in enumerate(draws)
            if draw.params.repetition_penalty != 1
            for token in draw.seen()
        ),
        logits.device,
    )
    if cells is not None:
        seen = logits[cells.rows, cells.tokens]
        logits[cells.rows, cells.tokens] = torch.where(seen > 0, seen / cells.values, seen * cells.values)


def _penalise_frequency(logits: Tensor, draws: Rows[Draw]) -> None:
    cells = Cells.of(
        (
            (row, token, -draw.params.presence_penalty - draw.params.frequency_penalty * count)
            for row, draw in enumerate(draws)
            if draw.params.presence_penalty or draw.params.frequency_penalty
            for token, count in draw.counts().items()
        ),
        logits.device,
    )
    _add(logits, cells)


def _add_biases(logits: Tensor, draws: Rows[Draw]) -> None:
    cells = Cells.of(
        (
            (row, token, bias)
            for row, draw in enumerate(draws)
            for token, bias in draw.params.logit_bias.items()
        ),
        logits.device,
    )
    _add(logits, cells)


def _hold_back_ends(logits: Tensor, draws: Rows[Draw]) -> None:
    """No end of sequence before min_tokens."""
    cells = Cells.of(
        ((row, token, MINUS_INFINITY) for row, draw in enumerate(draws) for token in draw.forbidden_ids),
        logits.device,
    )
    _add(logits, cells)


def _add(logits: Tensor, cells: Cells | None) -> None:
    if cells is not None:
        logits.index_put_((cells.rows, cells.tokens), cells.values, accumulate=True)
