"""A row's state for sampling: what its next token depends on besides its logits."""

from array import array
from collections import deque
from collections.abc import MutableSequence, Sequence as Ids
from dataclasses import dataclass
from typing import Any, Self

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling.constraint import Constraint

#: Stands for the token of a row whose logits contain NaN or infinity.
NO_TOKEN = -1

#: Below this the likeliest token is taken, as in vLLM: logits divided by less would not be finite.
LEAST_TEMPERATURE = 1e-5


class Penalties:
    """Which ids one row is penalised for, and by how much. It is told each drawn token, and nothing else.

    The repetition penalty looks at prompt and output, the presence and frequency penalties at the output, and
    all of them only at the last `repeat_last_n` tokens. The cost of a token does not grow with the text.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Ids[int]) -> None:
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self.repetition = params.repetition_penalty
        #: Each id once, in no order.
        self.ids: array[int] = array("q")
        #: For each id: what presence and frequency penalties add to its logit.
        self.addends: array[float] = array("f")
        self._slots: dict[int, int] = {}  # the index of each id
        self._num_drawn: list[int] = []  # how often each id is in the output
        self._num_given: list[int] = []  # how often each id is in the prompt
        self._most = params.repeat_last_n
        self._window: deque[int] = deque()  # the last tokens, the prompt's first; unused if all count
        given = prompt_ids if self.repetition != 1 else ()
        for token_id in given if self._most < 0 else given[max(0, len(given) - self._most) :]:
            self._num_given[self._slot(token_id)] += 1
            if self._most >= 0:
                self._window.append(token_id)
        self._num_given_left = len(self._window)

    @classmethod
    def if_any(cls, params: SamplingParams, prompt_ids: Ids[int]) -> Self | None:
        """None for parameters that penalise nothing."""
        is_any = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        return cls(params, prompt_ids) if is_any else None

    def add(self, token_id: int) -> None:
        """Note a drawn token; with a window, an older one may leave it."""
        slot = self._slot(token_id)
        self._num_drawn[slot] += 1
        self._weigh(slot)
        if self._most >= 0:
            self._window.append(token_id)
            if len(self._window) > self._most:
                self._leave(self._window.popleft())

    def _leave(self, token_id: int) -> None:
        slot = self._slots[token_id]
        if self._num_given_left:
            self._num_given_left -= 1
            self._num_given[slot] -= 1
        else:
            self._num_drawn[slot] -= 1
            self._weigh(slot)
        if not self._num_given[slot] and not self._num_drawn[slot]:
            self._free(slot)

    def _slot(self, token_id: int) -> int:
        """The index of an id; a new one is appended."""
        slot = self._slots.setdefault(token_id, len(self.ids))
        if slot == len(self.ids):
            self.ids.append(token_id)
            self.addends.append(0.0)
            self._num_drawn.append(0)
            self._num_given.append(0)
        return slot

    def _weigh(self, slot: int) -> None:
        count = self._num_drawn[slot]
        self.addends[slot] = -self._presence - self._frequency * count if count else 0.0

    def _free(self, slot: int) -> None:
        """Forget an id; the last one takes its place."""
        del self._slots[self.ids[slot]]
        if slot < len(self.ids) - 1:
            self._slots[self.ids[-1]] = slot
        columns: list[MutableSequence[Any]] = [self.ids, self.addends, self._num_drawn, self._num_given]
        for column in columns:
            column[slot] = column[-1]
            column.pop()


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
