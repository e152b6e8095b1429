"""The budget of prompt tokens follows what steps take: as many as double the time of a step without."""

from typing import Self

#: Times as many prompt tokens are computed in a step that keeps no stream waiting.
ALONE_FACTOR = 32

#: Prompt tokens that take about as long as a step of a small model, by the kind of the device; see
#: docs/decisions/0005.
LEAST_TOKENS = {"cpu": 16, "cuda": 256}

#: As many steps may the prompts of one take beside streams that can all wait.
PATIENT_STEPS = 8

#: Of what is known, the part that is kept when a step tells more. So some ten steps count.
KEPT = 0.9


class PrefillBudget:
    """Prompt tokens of a step.

    A step with prompts is to take no more than twice the time of one in which all running sequences decode,
    so that streams go on evenly, or PATIENT_STEPS times more where all can wait. How many tokens that allows
    depends on the model, the processor and the number of rows: weights that are read for the rows anyway
    multiply some prompt tokens for next to nothing. So it is learnt from the steps, between `least` and
    `most`; where these are equal it is fixed.

    A prompt token and a row that decodes are taken to cost the same. So what a step without prompts takes
    is known for any number of rows, also where prompts always wait and there is no such step any more.
    """

    def __init__(self, least: int, most: int | None = None) -> None:
        self.alone = ALONE_FACTOR * least
        self.most = most or least
        self._least = least
        self._tried = least  # prompt tokens of the last step with some
        self.decode_s = 0.0  # of a step without prompts; 0 until there was one
        self._decode_rows = 0.0  # how many rows it had
        # Sums over steps with prompts, for the line through such a step that fits their times best.
        self._products = self._squares = 0.0

    @classmethod
    def from_setting(cls, prefill_tokens: int, device_kind: str) -> Self:
        """By HERD_PREFILL_TOKENS: fixed, or learnt where it is 0."""
        least = prefill_tokens or LEAST_TOKENS[device_kind]
        return cls(least, most=None if prefill_tokens else ALONE_FACTOR * least)

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """A step with so many prompt tokens beside so many rows that decode took `seconds`."""
        if not num_decoding:
            return
        if not num_prompt_tokens:
            kept = KEPT if self.decode_s else 0.0
            self.decode_s = kept * self.decode_s + (1 - kept) * seconds
            self._decode_rows = kept * self._decode_rows + (1 - kept) * num_decoding
        elif self.decode_s:
            more_tokens = num_prompt_tokens + num_decoding - self._decode_rows
            self._products = KEPT * self._products + more_tokens * (seconds - self.decode_s)
            self._squares = KEPT * self._squares + more_tokens**2
            self._tried = num_prompt_tokens

    def beside(self, num_running: int, *, can_wait: bool = False) -> int:
        """Prompt tokens of a step with so many sequences, those whose prompts are not complete included.

        `can_wait`: all these, so that the step may take longer. No more tokens than twice those of the last
        one: how the time grows beyond is not known yet.
        """
        wanted = 2 * self._tried if self._squares else self._least
        if self._products > 0:
            as_a_step = self.decode_s * self._squares / self._products
            num_steps = PATIENT_STEPS if can_wait else 1
            wanted = min(wanted, int(num_steps * (as_a_step + num_running - self._decode_rows)))
        return max(self._least, min(wanted, self.most))
