"""Logits to token ids, the whole batch at once, each row by its own parameters.

Letters: B rows, V vocabulary.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.tasks.job import SamplingParams
from llama_herd.worker.noise import gumbel, hash_prefix


class Draw(NamedTuple):
    """What a row's next token depends on besides its logits."""

    params: SamplingParams
    seed: int
    position: int  # index of the token among the generated ones
    choice: int = 0


def sample(logits: Tensor, draws: Rows[Draw]) -> list[int]:
    """Draw one id a row. logits: (B, V) float32. One read from the device, whatever the number of rows.

    Temperature 0 takes the largest logit. Else temperature, top_k and top_p decide, in this order, which
    tokens survive and how likely they are, and Gumbel-max draws one of them.
    """
    ids = logits.argmax(dim=-1)  # (B,)
    random = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if random:
        rows = torch.tensor(random, device=logits.device)
        ids[rows] = _draw(logits[rows], [draws[row] for row in random])
    return ids.tolist()


def sample_each(logits: Tensor, draws: Rows[Draw]) -> list[int]:
    """The same, row by row: the bits of a row do not depend on how many there are."""
    return [sample(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]


def _draw(logits: Tensor, draws: Rows[Draw]) -> Tensor:
    """Gumbel-max over the survivors: (B, V) to (B,)."""
    device = logits.device
    temperature = torch.tensor([[draw.params.temperature] for draw in draws], device=device)
    scaled = logits / temperature  # (B, V)
    if any(draw.params.top_k or draw.params.top_p < 1 for draw in draws):
        scaled, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
        scaled = scaled.masked_fill(~_survivors(scaled, draws), float("-inf"))
    else:
        token_ids = torch.arange(scaled.shape[-1], device=device).expand_as(scaled)
    prefixes = torch.tensor(
        [[hash_prefix(draw.seed, draw.choice, draw.position)] for draw in draws], device=device
    )
    winners = (scaled.to(torch.float64) + gumbel(prefixes, token_ids)).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)  # (B,)


def _survivors(scaled: Tensor, draws: Rows[Draw]) -> Tensor:
    """Which of the tokens, sorted from the likeliest down, top_k and top_p leave: (B, V) bool.

    top_p keeps the smallest set whose probability reaches it, so the likeliest token always stays.
    """
    num_tokens = scaled.shape[-1]
    device = scaled.device
    top_k = torch.tensor([[draw.params.top_k or num_tokens] for draw in draws], device=device)
    top_p = torch.tensor([[draw.params.top_p] for draw in draws], device=device)
    kept = torch.arange(num_tokens, device=device) < top_k
    probs = scaled.masked_fill(~kept, float("-inf")).softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    return kept & ((before < top_p) | (top_p >= 1))
