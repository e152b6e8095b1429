"""A row's state for sampling: what its next token depends on besides its logits."""

from dataclasses import dataclass

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.penalties import Penalties

#: Below this the likeliest token is taken, as in vLLM: logits divided by less would not be finite.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row: its parameters, its noise, and its penalties. Drawing changes none of these."""

    params: SamplingParams
    seed: int
    position: int = 0  # index of the next token in the output
    penalties: Penalties | None = None  # None: no token is penalised
    eos_ids: frozenset[int] = frozenset()
    choice: int = 0
    constraint: Constraint | None = None  # None: any token may follow

    @property
    def is_random(self) -> bool:
        return self.params.temperature >= LEAST_TEMPERATURE

    @property
    def early_ends(self) -> frozenset[int]:
        """Ids that would end the sequence before `min_tokens`."""
        if self.position >= self.params.min_tokens:
            return frozenset()
        return self.eos_ids.union(self.params.stop_token_ids)

    @property
    def forbidden_ids(self) -> frozenset[int]:
        """Ids to forbid, as they would end the sequence before `min_tokens`; none where a mask does that."""
        return self.early_ends if self.constraint is None else frozenset()


#: Stands for the token of a row whose logits contain NaN or infinity.
NO_TOKEN = -1
