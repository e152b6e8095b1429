"""Scores: how likely logits make given tokens, and the likeliest others that may follow at all.

Letters: B tokens, V vocabulary, N alternatives.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

from torch import Tensor

from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY


class Scores(NamedTuple):
    """Scores of B tokens as tensors, on the device or on their way to the host."""

    ids: Tensor  # (B,)
    logprobs: Tensor  # (B,)
    top_ids: Tensor  # (B, N)
    top_logprobs: Tensor  # (B, N)

    @classmethod
    def from_logits(cls, logits: Tensor, ids: Tensor, num_top: int) -> Self:
        """Score ids (B,), of which any may be NO_TOKEN, by logits (B, V) float32."""
        total = logits.logsumexp(dim=-1, keepdim=True)  # (B, 1)
        chosen = (logits.gather(-1, ids.clamp(min=0)[:, None]) - total).squeeze(-1)  # (B,)
        top, top_ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1)  # (B, N)
        return cls(ids, chosen, top_ids, top - total)

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the scores with each tensor changed alike."""
        return type(self)(*map(change, self))

    def tokens(self) -> list[SampledToken]:
        rows = zip(*(part.tolist() for part in self), strict=True)
        return [
            SampledToken(
                token_id, logprob, tuple(filter(_may_follow, zip(alternatives, values, strict=True)))
            )
            for token_id, logprob, alternatives, values in rows
        ]


def _may_follow(alternative: tuple[int, float]) -> bool:
    return alternative[1] > MINUS_INFINITY


def with_top(token: SampledToken, num_top: int) -> SampledToken:
    """Return a token with no more alternatives than were asked for."""
    return token._replace(top=token.top[:num_top])
