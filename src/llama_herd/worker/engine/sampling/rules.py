"""Rules: a job's biases of single tokens and its ban on ends before `min_tokens`, as device tensors."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from llama_herd.model.upload import Send
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY
from llama_herd.worker.engine.sequence import Sequence


@dataclass(frozen=True, eq=False)
class Rules:
    """The biases of one sequence's logits: those of its job, and those that forbid an end too early."""

    biased_ids: Tensor
    biases: Tensor  # float32
    end_ids: Tensor
    end_biases: Tensor

    @classmethod
    def if_any(cls, sequence: Sequence, send: Send) -> Self | None:
        """Make the rules of a sequence; None if it has none."""
        biases, ends = sequence.params.logit_bias, sequence.sampling_row().forbidden_ids
        if not biases and not ends:
            return None
        end_biases = [MINUS_INFINITY] * len(ends)
        return cls(
            send(list(biases)), _sent(biases.values(), send), send(list(ends)), _sent(end_biases, send)
        )

    def hold(self, sequence: Sequence) -> bool:
        """Return whether a rule changes the logits of the sequence's next token."""
        return bool(sequence.params.logit_bias) or _is_short(sequence)

    def apply(self, logits: Tensor, sequence: Sequence) -> None:
        """Change the logits (V,) of the sequence's next token."""
        if sequence.params.logit_bias:
            logits.index_add_(0, self.biased_ids, self.biases)
        if _is_short(sequence):
            logits.index_add_(0, self.end_ids, self.end_biases)


def _is_short(sequence: Sequence) -> bool:
    return len(sequence.ids) + sequence.num_drawing < sequence.params.min_tokens


def _sent(numbers: Iterable[float], send: Send) -> Tensor:
    """Send numbers to the device as float32, by their bits."""
    return send(array("q", array("d", numbers).tobytes())).view(torch.float64).float()
