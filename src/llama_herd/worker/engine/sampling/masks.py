"""Masks: which tokens the constraints of rows let follow, before and on a device.

A mask has a bit for each token, packed: token t is bit t % 64 of word t // 64.

Letters: B rows, V vocabulary, W words of a mask.
"""

from collections.abc import Iterable, Sequence as Rows
from typing import TypeAlias

import numpy as np
import torch
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray
from torch import Tensor

from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.row import SamplingRow

#: (B, W) int64
Masks: TypeAlias = NDArray[np.int64]

WORD_BITS = 64
HALF_BITS = 32


def masks_for(rows: Rows[SamplingRow]) -> Masks:
    """Masks (B, W) of rows with a constraint. One that lets only an end follow goes before `min_tokens`."""
    masks = masks_of([row.constraint for row in rows if row.constraint is not None])
    for row, mask in zip(rows, masks, strict=True):
        if row.early_ends:
            hold_back(mask, row.early_ends)
    return masks


def masks_of(constraints: Rows[Constraint]) -> Masks:
    """The masks (B, W) of constraints, computed in parallel. A failed constraint lets no token follow."""
    first, num = constraints[0], len(constraints)
    halves = np.empty((num, -(-first.vocab_size // HALF_BITS)), np.int32)  # one more is refused
    matchers = [(one.matcher, row) for row, one in enumerate(constraints)]
    fill_next_token_bitmask_par(first.executor, matchers, halves)
    masks = np.zeros((num, -(-first.vocab_size // WORD_BITS)), np.int64)
    masks.view(np.int32)[:, : halves.shape[1]] = halves
    return masks


def hold_back(mask: NDArray[np.int64], token_ids: Iterable[int]) -> None:
    """Forbid tokens in a mask (W,), unless nothing else may follow."""
    left = mask.copy()
    for token_id in token_ids:
        left[token_id // WORD_BITS] &= ~(np.int64(1) << np.int64(token_id % WORD_BITS))
    if left.any():
        mask[:] = left


def unpacked(masks: Masks, vocab_size: int) -> Tensor:
    """A flag for each token: (B, V) bool."""
    bits = np.unpackbits(masks.view(np.uint8), axis=-1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def unpacked_there(masks: Tensor, vocab_size: int) -> Tensor:
    """Unpack masks (B, W) where they are, to flags (B, V). On a CPU, `unpacked` is 400 times as fast."""
    bits = torch.arange(WORD_BITS, device=masks.device)
    return ((masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, :vocab_size].bool()
