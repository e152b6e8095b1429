"""Scoring: how a layer scores keys, as every kernel of attention is told it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scoring:
    """How a layer scores keys."""

    scale: float | None = None  # None: 1 / sqrt(D)
    window: int = 0  # keys that a token sees, its own one of them; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay

    def scale_for(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.scale is None else self.scale
