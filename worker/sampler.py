"""Logits to token ids, the whole batch at once, each row by its own parameters.

Letters: B rows, V vocabulary, N most alternatives asked for.
"""

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from llama_herd.worker.draw import NO_TOKEN, Draw, Drawn
from llama_herd.worker.logit_rules import apply_rules
from llama_herd.worker.noise import gumbel, hash_prefix


def sample(logits: Tensor, draws: Rows[Draw]) -> list[Drawn]:
    """Draw one token a row. logits: (B, V) float32. One read from the device, whatever the number of rows.

    Penalties and biases come first. Then temperature 0 takes the largest logit; else temperature, min_p,
    top_k and top_p decide, in this order, which tokens survive, and Gumbel-max draws one of them. A row with
    logits that are no numbers gets NO_TOKEN, and no other row is touched by it.
    """
    ruled = apply_rules(logits, draws)
    ids = ruled.argmax(dim=-1)  # (B,)
    random = [row for row, draw in enumerate(draws) if draw.is_random]
    if random:
        rows = torch.tensor(random, device=logits.device)
        ids[rows] = _draw(ruled[rows], [draws[row] for row in random])
    ids = ids.masked_fill(~logits.isfinite().all(dim=-1), NO_TOKEN)
    if any(draw.params.logprobs for draw in draws):
        return _with_logprobs(logits, ids, draws)
    return [Drawn(token_id) for token_id in ids.tolist()]


def sample_each(logits: Tensor, draws: Rows[Draw]) -> list[Drawn]:
    """The same, row by row: the bits of a row do not depend on how many there are."""
    return [sample(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]


def _draw(logits: Tensor, draws: Rows[Draw]) -> Tensor:
    """Gumbel-max over the survivors: (B, V) to (B,)."""
    scaled = logits / _column([draw.params.temperature for draw in draws], logits)  # (B, V)
    if any(_is_filtered(draw) for draw in draws):
        scaled, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
        scaled = scaled.masked_fill(~_survivors(scaled, draws), float("-inf"))
    else:
        token_ids = torch.arange(scaled.shape[-1], device=logits.device).expand_as(scaled)
    prefixes = _column([hash_prefix(draw.seed, draw.choice, draw.position) for draw in draws], logits)
    winners = (scaled.to(torch.float64) + gumbel(prefixes, token_ids)).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)  # (B,)


def _is_filtered(draw: Draw) -> bool:
    return bool(draw.params.top_k) or draw.params.top_p < 1 or draw.params.min_p > 0


def _survivors(scaled: Tensor, draws: Rows[Draw]) -> Tensor:
    """Which of the tokens, sorted from the likeliest down, min_p, top_k and top_p leave: (B, V) bool.

    top_p keeps the smallest set whose probability reaches it, so the likeliest token always stays.
    """
    num_tokens = scaled.shape[-1]
    min_p = _column([draw.params.min_p for draw in draws], scaled)
    top_k = _column([draw.params.top_k or num_tokens for draw in draws], scaled)
    top_p = _column([draw.params.top_p for draw in draws], scaled)
    likeliest = scaled[:, :1]  # (B, 1)
    kept = (scaled - likeliest).exp() >= min_p
    kept &= torch.arange(num_tokens, device=scaled.device) < top_k
    probs = scaled.masked_fill(~kept, float("-inf")).softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    return kept & ((before < top_p) | (top_p >= 1))


def _with_logprobs(logits: Tensor, ids: Tensor, draws: Rows[Draw]) -> list[Drawn]:
    """What was drawn with the model's own log-probabilities, before any rule or temperature."""
    logprobs = logits.log_softmax(dim=-1)  # (B, V)
    chosen = logprobs.gather(-1, ids.clamp(min=0)[:, None]).squeeze(-1)  # (B,)
    most = min(max(draw.params.top_logprobs for draw in draws), logits.shape[-1])
    top, top_ids = logprobs.topk(most, dim=-1)  # (B, N)
    rows = zip(draws, ids.tolist(), chosen.tolist(), top_ids.tolist(), top.tolist(), strict=True)
    return [
        Drawn(token_id, logprob, tuple(zip(alternatives, values, strict=True))[: draw.params.top_logprobs])
        if draw.params.logprobs
        else Drawn(token_id)
        for draw, token_id, logprob, alternatives, values in rows
    ]


def _column(values: list[int] | list[float], like: Tensor) -> Tensor:
    """One number a row: (B, 1)."""
    return torch.tensor(values, device=like.device).unsqueeze(-1)
