"""What makes a rank of the state behind a query and a document: the logits of one or two tokens.

Shapes: N documents, C hidden size, L labels: one or two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from llama_herd.errors import ModelFileError
from llama_herd.model.files.model_file import LABELS_NAME, ModelFile
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.purpose import Ranks
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weights.linear import dense_matrix
from llama_herd.model.weights.weight import Weight


@dataclass(frozen=True, eq=False)
class RankHead:
    """The head's rows of the labels: a rank is the logit of the first, less that of the second."""

    labels: Tensor  # (L, C) float32
    scaled: Callable[[Tensor], Tensor]  # logits as the family scales and caps them

    @classmethod
    def load(
        cls, file: ModelFile, purpose: Ranks, llama: Llama, tokenizer: Tokenizer, device: torch.device
    ) -> Self:
        """Read the rows. Raises ModelFileError."""
        weight = _label_weight(file, _label_ids(purpose, tokenizer, file.metadata.source))
        return cls(dense_matrix([weight], device, torch.float32), llama.scaled)

    def __call__(self, states: Tensor, dimensions: int | None) -> Tensor:
        """Ranks (N, 1) of states (N, C), both float32; each is one number."""
        # In float64, so that a rank does not show how many are computed at once.
        logits = self.scaled((states.double() @ self.labels.double().T).float())  # (N, L)
        return logits if len(self.labels) == 1 else logits[:, :1] - logits[:, 1:]


def _label_ids(purpose: Ranks, tokenizer: Tokenizer, source: str) -> list[int]:
    """The ids of the labels. Raises ModelFileError for one that the vocabulary does not have as a token."""
    ids = []
    for label in purpose.labels:
        found = tokenizer.encode(label, add_bos=False) if isinstance(label, str) else [label]
        if len(found) != 1 or not 0 <= found[0] < tokenizer.vocab_size:
            raise ModelFileError(f"{source}: {label!r} is no token of its vocabulary. Take another reranker.")
        ids += found
    return ids


def _label_weight(file: ModelFile, ids: Sequence[int]) -> Weight:
    """The rows of the head for these tokens; for none: the rows that the file has for its labels."""
    if not ids:
        return file.weight(LABELS_NAME)
    head = file.weight("output.weight")
    rows = torch.cat([head.rows[token_id : token_id + 1] for token_id in ids])
    return Weight(head.type, (len(ids), head.shape[-1]), rows)
