"""Logits to token ids, the whole batch at once, each row by its own parameters.

Letters: B rows, V vocabulary, N tokens that are looked at.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence as Rows
from enum import Enum

import torch
from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.tasks.sampling import SamplingParams
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
    largest, ids = ruled.max(dim=-1)  # (B,) each; NaN counts as the largest
    for numbers in _groups(draws):
        rows = upload(numbers, logits.device)
        ids[rows] = _draw(ruled[rows], [draws[row] for row in numbers])
    ids = ids.masked_fill(~largest.isfinite(), NO_TOKEN)
    if any(draw.params.logprobs for draw in draws):
        return _with_logprobs(logits, ids, draws)
    return [Drawn(token_id) for token_id in ids.tolist()]


def sample_each(logits: Tensor, draws: Rows[Draw]) -> list[Drawn]:
    """The same, row by row: the bits of a row do not depend on how many there are."""
    return [sample(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]


def _groups(draws: Rows[Draw]) -> Iterable[list[int]]:
    """The rows that are drawn at random, those together that need as much of the vocabulary."""
    groups: dict[Needed, list[int]] = defaultdict(list)
    for row, draw in enumerate(draws):
        if draw.is_random:
            groups[Needed.by(draw.params)].append(row)
    return groups.values()


class Needed(Enum):
    """How much of the vocabulary a row's filters must see in order; each costs far more than the last."""

    NOTHING = 1
    THE_LIKELIEST = 2
    ALL = 3

    @classmethod
    def by(cls, params: SamplingParams) -> "Needed":
        if params.top_k:
            return cls.THE_LIKELIEST
        return cls.ALL if params.top_p < 1 or params.min_p > 0 else cls.NOTHING


def _draw(logits: Tensor, draws: Rows[Draw]) -> Tensor:
    """Gumbel-max over the survivors of one group: (B, V) to (B,)."""
    scaled = logits / _column([draw.params.temperature for draw in draws], logits)  # (B, V)
    scaled, token_ids = _in_order(scaled, draws)  # (B, N)
    prefixes = _column([hash_prefix(draw.seed, draw.choice, draw.position) for draw in draws], logits)
    noise = gumbel(prefixes.to(torch.int32), token_ids.to(torch.int32))  # (B, N)
    winners = (scaled + noise).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)  # (B,)


def _in_order(scaled: Tensor, draws: Rows[Draw]) -> tuple[Tensor, Tensor]:
    """As many of the tokens as the group's filters look at, likeliest first, and their ids."""
    num_tokens = scaled.shape[-1]
    match Needed.by(draws[0].params):
        case Needed.NOTHING:
            return scaled, torch.arange(num_tokens, device=scaled.device).expand_as(scaled)
        case Needed.THE_LIKELIEST:
            most = min(max(draw.params.top_k for draw in draws), num_tokens)
            values, token_ids = scaled.topk(most, dim=-1)
        case Needed.ALL:
            values, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
    return values.masked_fill(~_survivors(values, draws), float("-inf")), token_ids


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


def score(logits: Tensor, token_ids: Rows[int], num_top: int) -> list[Drawn]:
    """Tokens with the log-probabilities that logits (B, V) give them, and the likeliest in their place."""
    return _scored(logits, upload(token_ids, logits.device), num_top)


def _with_logprobs(logits: Tensor, ids: Tensor, draws: Rows[Draw]) -> list[Drawn]:
    """What was drawn with the model's own log-probabilities, before any rule or temperature."""
    scored = _scored(logits, ids, max(draw.params.top_logprobs for draw in draws))
    return [
        token._replace(top=token.top[: draw.params.top_logprobs])
        if draw.params.logprobs
        else Drawn(token.token_id)
        for draw, token in zip(draws, scored, strict=True)
    ]


def _scored(logits: Tensor, ids: Tensor, num_top: int) -> list[Drawn]:
    """The same for ids (B,) on the device; one may be NO_TOKEN."""
    total = logits.logsumexp(dim=-1, keepdim=True)  # (B, 1)
    chosen = (logits.gather(-1, ids.clamp(min=0)[:, None]) - total).squeeze(-1)  # (B,)
    top, top_ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1)  # (B, N)
    rows = zip(ids.tolist(), chosen.tolist(), top_ids.tolist(), (top - total).tolist(), strict=True)
    return [
        Drawn(token_id, logprob, tuple(zip(alternatives, values, strict=True)))
        for token_id, logprob, alternatives, values in rows
    ]


def _column(values: list[int] | list[float], like: Tensor) -> Tensor:
    """One number a row: (B, 1)."""
    dtype = torch.float32 if isinstance(values[0], float) else torch.int64
    return upload(values, like.device, dtype).unsqueeze(-1)
