"""What a row's next token depends on besides its logits, and what is drawn."""

from collections import Counter
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import NamedTuple

from llama_herd.tasks.sampling import SamplingParams

#: Below it the likeliest token is taken, as in vLLM: logits divided by less would not be finite.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Draw:
    """One row: its parameters, its noise, and its text so far. It holds no state of its own."""

    params: SamplingParams
    seed: int
    prompt_ids: Ids[int] = ()
    ids: Ids[int] = ()
    eos_ids: frozenset[int] = frozenset()
    choice: int = 0

    @property
    def position(self) -> int:
        """Index of the next token among the generated ones."""
        return len(self.ids)

    @property
    def is_random(self) -> bool:
        return self.params.temperature >= LEAST_TEMPERATURE

    @property
    def is_plain(self) -> bool:
        """Whether the logits are taken as they are."""
        params = self.params
        return (
            params.repetition_penalty == 1
            and not params.presence_penalty
            and not params.frequency_penalty
            and not params.logit_bias
            and self.position >= params.min_tokens
        )

    def seen(self) -> set[int]:
        """The ids that the repetition penalty looks at: of prompt and output, the last `repeat_last_n`."""
        return {*self._last(self.prompt_ids, num_after=len(self.ids)), *self._last(self.ids)}

    def counts(self) -> Counter[int]:
        """How often each id came: of the output, among the last `repeat_last_n`."""
        return Counter(self._last(self.ids))

    @property
    def forbidden_ids(self) -> frozenset[int]:
        """Ids that would end the sequence before `min_tokens`."""
        if self.position >= self.params.min_tokens:
            return frozenset()
        return self.eos_ids.union(self.params.stop_token_ids)

    def _last(self, ids: Ids[int], num_after: int = 0) -> Ids[int]:
        """Those of ids that are among the last `repeat_last_n`, when so many others come after them."""
        if self.params.repeat_last_n < 0:
            return ids
        num_kept = max(0, self.params.repeat_last_n - num_after)
        return ids[max(0, len(ids) - num_kept) :]


#: Stands for a token where a row's logits are no numbers.
NO_TOKEN = -1


class Drawn(NamedTuple):
    """One row's next token; with `logprobs`, how likely it was, and the likeliest in its place."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
