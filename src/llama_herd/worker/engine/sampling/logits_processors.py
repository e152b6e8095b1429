"""Penalties, biases and min_tokens: how a job's parameters and text change its logits before the draw.

Letters: B rows, V vocabulary, N entries over all rows. Each rule is a few indexed operations for the whole
batch, and rows that do not use it pay nothing.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY
from llama_herd.worker.engine.sampling.penalties import Penalties
from llama_herd.worker.engine.sampling.row import SamplingRow

#: Most entries penalised at once: as many as fit in a core's cache.
MOST_CELLS = 2**14


class Cells(NamedTuple):
    """Positions in the logits."""

    rows: Tensor  # (N,)
    tokens: Tensor  # (N,)

    @classmethod
    def from_rows(cls, tokens_by_row: Mapping[int, Collection[int]], device: torch.device) -> "Cells | None":
        """The given tokens of the given rows, in this order; None if there are none."""
        rows, tokens = list[int](), list[int]()
        for row, some in tokens_by_row.items():
            rows += [row] * len(some)
            tokens += some
        return cls(upload(rows, device), upload(tokens, device)) if rows else None


def apply_rules(logits: Tensor, rows: Rows[SamplingRow]) -> Tensor:
    """Apply penalties, then biases, then forbid tokens before min_tokens: (B, V), a copy if anything changes.

    Repetition penalty (https://arxiv.org/abs/1909.05858): a positive logit is divided by it, a negative one
    multiplied. Frequency and presence penalties are subtracted after it.
    """
    if all(row.is_plain for row in rows):
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    _penalise(logits, rows)
    _add_biases(logits, rows)
    _hold_back_ends(logits, rows)
    return logits


def _penalise(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    """Change the logits of the ids that each row's penalties look at. logits: (B, V), contiguous.

    Rows of similar length go together, padded to the longest, so that the host only copies memory.
    """
    flat, device = logits.view(-1), logits.device
    for group in _by_length(rows):
        longest = len(group[-1][1].ids)
        first_places = upload([number * logits.shape[-1] for number, _ in group], device)  # (P,)
        tokens = b"".join(penalties.padded_ids(longest) for _, penalties in group)
        places = (
            upload(array("q", tokens), device).view(len(group), longest) + first_places[:, None]
        )  # (P, N)
        addends = b"".join(penalties.padded_addends(longest) for _, penalties in group)
        repetition = upload([penalties.repetition for _, penalties in group], device, torch.float32)[:, None]
        was = flat.index_select(0, places.view(-1)).view_as(places)
        penalised = torch.where(was > 0, was / repetition, was * repetition)
        penalised += upload(array("f", addends), device, torch.float32).view_as(places)
        flat.put_(places, penalised)


def _by_length(rows: Rows[SamplingRow]) -> Iterator[list[tuple[int, Penalties]]]:
    """The rows with something to penalise, and their numbers: the shortest first, in groups that fit."""
    numbered = [(number, row.penalties) for number, row in enumerate(rows) if row.penalties is not None]
    group: list[tuple[int, Penalties]] = []
    for number, penalties in sorted(numbered, key=lambda one: len(one[1].ids)):
        if group and (len(group) + 1) * len(penalties.ids) > MOST_CELLS:
            yield group
            group = []
        if penalties.ids:
            group.append((number, penalties))
    if group:
        yield group


def _add_biases(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    _add(logits, {number: row.params.logit_bias for number, row in enumerate(rows)})


def _hold_back_ends(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    """Forbid every token that ends the sequence before min_tokens."""
    forbidden = {number: row.forbidden_ids for number, row in enumerate(rows)}
    _add(logits, {number: dict.fromkeys(ids, MINUS_INFINITY) for number, ids in forbidden.items()})


def _add(logits: Tensor, numbers: Mapping[int, Mapping[int, float]]) -> None:
    """Add numbers to the logits of the given rows and tokens."""
    cells = Cells.from_rows(numbers, logits.device)
    if cells is not None:
        values = [value for row in numbers.values() for value in row.values()]
        addends = upload(values, logits.device, torch.float32)  # (N,)
        logits.index_put_((cells.rows, cells.tokens), addends, accumulate=True)
