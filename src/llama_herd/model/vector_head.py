"""What makes a vector of a text's pooled state: dense layers, a cut, and a length of 1.

Shapes: N texts, C hidden size, W width of a vector.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from llama_herd.errors import ModelFileError
from llama_herd.model.files.safetensors import SafetensorsFile
from llama_herd.model.shape.purpose import Dense, Embeds
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
