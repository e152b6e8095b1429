"""What makes numbers of a text's state: its vector by dense layers, a cut and a length of 1, or a rank.

Shapes: N texts, C hidden size, W width of a vector, L labels: one or two.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from llama_herd.errors import ModelFileError
from llama_herd.model.files.model_file import LABELS_NAME, ModelFile
from llama_herd.model.files.safetensors import SafetensorsFile
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.purpose import Dense, Embeds, Ranks
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weights.linear import dense_matrix
from llama_herd.model.weights.weight import Weight


class Head(Protocol):
    """What is between the mean of a text's states and the numbers that it comes to."""

    def __call__(self, means: Tensor, dimensions: int | None, /) -> Tensor:
        """The numbers (N, W) of means (N, C), both float32; `dimensions`: how many of a vector, None: all."""


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """activation(W x + b), in float64: a vector does not show how many are computed at once."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    @classmethod
    def load(cls, dense: Dense, device: torch.device) -> Self:
        """Read its file. Raises ModelFileError unless it holds just that layer."""
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (dense.out_features, dense.in_features)}
        if dense.has_bias:
            shapes["linear.bias"] = (dense.out_features,)
        with closing(SafetensorsFile.open(dense.path)) as file:
            found = {name: info.shape for name, info in file.tensors.items()}
            if found != shapes:
                raise ModelFileError(f"{file.path}: holds {found}, expected {shapes}. Fetch it again.")
            stored = [file.rows(name) for name in shapes]
            weights = [Weight(rows.info.type, rows.info.shape, rows) for rows in stored]
            weight, *bias = (dense_matrix([weight], device, torch.float32) for weight in weights)
        return cls(weight, bias[0][0] if bias else None, dense.activation)

    def __call__(self, x: Tensor) -> Tensor:
        y = linear(x.double(), self.weight.double(), None if self.bias is None else self.bias.double())
        return (y.tanh() if self.activation == "Tanh" else y).float()


@dataclass(frozen=True, eq=False)
class VectorHead:
    """All that is between the mean of a text's states and its vector."""

    dense: tuple[DenseLayer, ...] = ()
    is_normalised: bool = True

    @classmethod
    def load(cls, purpose: Embeds, device: torch.device) -> Self:
        """Read the dense layers. Raises ModelFileError."""
        return cls(tuple(DenseLayer.load(one, device) for one in purpose.dense), purpose.is_normalised)

    def __call__(self, means: Tensor, dimensions: int | None) -> Tensor:
        """The first numbers of vectors (N, W) of means (N, C), both float32, then normalised."""
        for layer in self.dense:
            means = layer(means)
        vectors = means[:, :dimensions]
        # In float64, so that a vector does not show how many are cut at once.
        return normalize(vectors.double(), dim=-1).float() if self.is_normalised else vectors


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
