"""How many prompt tokens a step computes beside rows that decode: as many as take the time of the rest."""

from typing import Self

#: Times as many prompt tokens are computed in a step that keeps no stream waiting.
ALONE_FACTOR = 32

#: Prompt tokens that take about as long as a step of a small model, by the kind of the device; see
#: docs/decisions/0005.
LEAST_TOKENS = {"cpu": 16, "cuda": 256}

#: Of what is known, the part that is kept when a step tells more. So some ten steps count.
KEPT = 0.9


class PrefillBudget:
    """Prompt tokens of a step.

    A step with prompts is to take no more than twice the time of one without, so that streams go on evenly.
    How many tokens that allows depends on the model, the processor and the number of rows: weights that are
    read for the rows anyway multiply some prompt tokens for next to nothing. So it is learnt from the steps,
    between `least` and `most`; where these are equal it is fixed.
    """

    def __init__(self, least: int, most: int | None = None) -> None:
        self.alone = ALONE_FACTOR * least
        self.beside = least
        self.most = most or least
        self._least = least
        self.decode_s = 0.0  # of a step without prompts; 0 until there was one
        self._extra_s = 0.0  # sums over steps with prompts: their time beyond that, and their prompt tokens
        self._num_tokens = 0.0

    @classmethod
    def of(cls, prefill_tokens: int, device_kind: str) -> Self:
        """By HERD_PREFILL_TOKENS: fixed, or learnt where it is 0."""
        least = prefill_tokens or LEAST_TOKENS[device_kind]
        return cls(least, most=None if prefill_tokens else ALONE_FACTOR * least)

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """A step with so many prompt tokens beside so many rows that decode took `seconds`."""
        if not num_decoding:
            return
        if not num_prompt_tokens:
            self.decode_s = KEPT * self.decode_s + (1 - KEPT) * seconds if self.decode_s else seconds
        elif self.decode_s:
            self._extra_s = KEPT * self._extra_s + max(0.0, seconds - self.decode_s)
            self._num_tokens = KEPT * self._num_tokens + num_prompt_tokens
            self.beside = self._fitting

    @property
    def _fitting(self) -> int:
        """No more than twice as many as now: how the time grows beyond is not known yet."""
        wanted = 2 * self.beside
        if self._extra_s:
            wanted = min(wanted, int(self.decode_s * self._num_tokens / self._extra_s))
        return max(self._least, min(wanted, self.most))
