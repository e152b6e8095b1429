"""Linear: a matrix of a model as ordered segments of rows. The one seam for quantised weights.

Shapes: T tokens of the ragged batch, N rows (outputs), C columns (inputs).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.block_types import NUMBERS
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.unloaded import UnloadedKernels
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.segment import (
    BlockSegment,
    DenseSegment,
    NativeSegment,
    Segment,
    TritonSegment,
    dense_matrix,
    joined_blocks,
)
from llama_herd.model.weights.weight import Weight


@dataclass(frozen=True, eq=False)
class Linear:
    """x @ W.T + bias, where W is the segments' rows one below the other.

    Projections of the same input are one Linear, so that QKV is one matmul, and gate and up another.
    """

    segments: tuple[Segment, ...]
    bias: Tensor | None = None  # (N,)

    @classmethod
    def load(
        cls,
        weights: Sequence[Weight],
        device: torch.device,
        dtype: torch.dtype,
        row_tile: int = 0,
        form: WeightForm = WeightForm.DENSE,
        *,
        is_multiplied: bool = True,
    ) -> Self:
        """Lay out weights of equal width for a device; neighbours of equal layout become one segment.

        What is not multiplied has only its rows looked up, which is faster where they lie as they are.
        """

        def kept_type(weight: Weight) -> GGMLType | None:
            """The type in whose blocks a weight stays."""
            return weight.type if form.keeps_blocks(weight.type, device.type, dtype.itemsize) else None

        def segment(kept: GGMLType | None, group: Sequence[Weight]) -> Segment:
            if kept is None:
                is_tiled = form.tiles_numbers(group[0].shape[-1], device.type, dtype.itemsize)
                if is_tiled and is_multiplied and isinstance(form.kernels, Kernels):
                    return NativeSegment.load(group, form.kernels, dtype, NUMBERS)
                return DenseSegment(dense_matrix(group, device, dtype), row_tile)
            if form.is_native(kept, device.type):
                if isinstance(form.kernels, Kernels):
                    return NativeSegment.load(group, form.kernels, dtype)
                assert not isinstance(form.kernels, UnloadedKernels), "kernels must be loaded to compute"
                return TritonSegment.load(group, form.kernels, device, dtype)
            return BlockSegment(kept, joined_blocks(group, device), group[0].shape[-1], dtype, row_tile)

        return cls(tuple(segment(kept, list(group)) for kept, group in groupby(weights, kept_type)))

    @property
    def is_native(self) -> bool:
        """Whether a native kernel multiplies all of it."""
        return all(isinstance(segment, NativeSegment) for segment in self.segments)

    def __call__(self, x: Tensor) -> Tensor:
        parts = [segment(x) for segment in self.segments]  # (T, rows) each
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (T, N)
        return y if self.bias is None else y + self.bias

    def in_float32(self, x: Tensor) -> Tensor:
        """The same in float32: without a rounding before that, where native kernels multiply all."""
        if self.bias is not None or not self.is_native:
            return self(x).float()
        parts = [one.in_float32(x) for one in self.segments if isinstance(one, NativeSegment)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (T, N)
