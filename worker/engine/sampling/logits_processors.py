"""What a job's wishes and its text so far do to its logits, before a token is drawn.

Letters: B rows, V vocabulary, N entries over all rows. Rows are told apart by index, so that each rule is a
few operations for the whole batch, and rows that do not use it pay nothing.
"""

from collections.abc import Collection, Mapping, Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.worker.engine.sampling.draw import Draw

MINUS_INFINITY = float("-inf")


class Cells(NamedTuple):
    """Places in the logits."""

    rows: Tensor  # (N,)
    tokens: Tensor  # (N,)

    @classmethod
    def of(cls, tokens_by_row: Mapping[int, Collection[int]], device: torch.device) -> "Cells | None":
        """Some tokens of some rows, in this order; None when there are none."""
        rows, tokens = list[int](), list[int]()
        for row, some in tokens_by_row.items():
            rows += [row] * len(some)
            tokens += some
        return cls(upload(rows, device), upload(tokens, device)) if rows else None


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
    penalties = [draw.params.repetition_penalty for draw in draws]
    seen = {row: draw.seen() for row, draw in enumerate(draws) if penalties[row] != 1}
    cells = Cells.of(seen, logits.device)
    if cells is not None:
        penalty = upload(penalties, logits.device, torch.float32)[cells.rows]  # (N,)
        was = logits[cells.rows, cells.tokens]
        logits[cells.rows, cells.tokens] = torch.where(was > 0, was / penalty, was * penalty)


def _penalise_frequency(logits: Tensor, draws: Rows[Draw]) -> None:
    penalties = {}
    for row, draw in enumerate(draws):
        presence, frequency = draw.params.presence_penalty, draw.params.frequency_penalty
        if presence or frequency:
            counts = draw.counts().items()
            penalties[row] = {token: -presence - frequency * count for token, count in counts}
    _add(logits, penalties)


def _add_biases(logits: Tensor, draws: Rows[Draw]) -> None:
    _add(logits, {row: draw.params.logit_bias for row, draw in enumerate(draws)})


def _hold_back_ends(logits: Tensor, draws: Rows[Draw]) -> None:
    """No end of sequence before min_tokens."""
    _add(logits, {row: dict.fromkeys(draw.forbidden_ids, MINUS_INFINITY) for row, draw in enumerate(draws)})


def _add(logits: Tensor, numbers: Mapping[int, Mapping[int, float]]) -> None:
    """Add numbers, by row and token."""
    cells = Cells.of(numbers, logits.device)
    if cells is not None:
        values = [value for row in numbers.values() for value in row.values()]
        addends = upload(values, logits.device, torch.float32)  # (N,)
        logits.index_put_((cells.rows, cells.tokens), addends, accumulate=True)
