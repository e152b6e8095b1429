"""Scores: how likely logits make given tokens, and the likeliest others that may follow at all.

Letters: B tokens, V vocabulary, N alternatives.
"""

from collections.abc import Callable, Sequence as Rows
from typing import NamedTuple, Self

from torch import Tensor

from llama_herd.model.upload import Send
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY
from llama_herd.worker.engine.sampling.row import SamplingRow


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
                token_id,
                logprob,
                tuple(one for one in zip(alternatives, values, strict=True) if one[1] > MINUS_INFINITY),
            )
            for token_id, logprob, alternatives, values in rows
        ]


class Told(NamedTuple):
    """The scores of those rows of a draw whose jobs asked for them."""

    num_top: dict[int, int]  # by the number of each of these rows: how many alternatives it asked for
    scores: Scores

    @classmethod
    def if_any(cls, logits: Tensor, ids: Tensor, rows: Rows[SamplingRow], send: Send) -> Self | None:
        """By logits (B, V) before any rule or temperature, but for constraints, and the drawn ids (B,)."""
        num_top = {number: row.params.top_logprobs for number, row in enumerate(rows) if row.params.logprobs}
        if not num_top:
            return None
        if len(num_top) < len(rows):
            picked = send(list(num_top))
            logits, ids = logits[picked], ids[picked]
        return cls(num_top, Scores.from_logits(logits, ids, max(num_top.values())))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with each tensor changed alike."""
        return self._replace(scores=self.scores.each(change))

    def numbered(self, numbers: Rows[int]) -> Self:
        """Return the same for a draw of some of more rows, by the numbers of these."""
        return self._replace(num_top={numbers[number]: num for number, num in self.num_top.items()})


def sampled_tokens(ids: Tensor, told: Told | None) -> list[SampledToken]:
    """The tokens of drawn ids (B,) that have reached the host, with what is told of them."""
    tokens = [SampledToken(token_id) for token_id in ids.tolist()]
    if told is not None:
        for (number, num_top), token in zip(told.num_top.items(), told.scores.tokens(), strict=True):
            tokens[number] = token._replace(top=token.top[:num_top])
    return tokens
