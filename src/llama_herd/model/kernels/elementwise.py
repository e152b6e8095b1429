"""RMSNorm and gates by a native library: each in one pass over its rows.

Shapes: T tokens of the ragged batch, C hidden size, F ffn size.
"""

import ctypes
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart
from llama_herd.model.kernels.trials import TRIED, rows_are_right

#: herd::Activation, by the names in config.json.
ACTIVATION_NUMBERS = {"silu": 0, "gelu_pytorch_tanh": 1}


class RowKernels(Protocol):
    """Kernels for work on each row by itself: norms and gates."""

    def takes(self, x: Tensor) -> bool:
        """Whether it is made for such rows."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x (T, C) / sqrt(mean(x^2) + eps) * weight (C,), which is float32."""

    def norm_of_sum(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        alpha: float,
        post_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x + alpha * added, and that normalised: (T, C) each.

        What is added is normalised before, if there is a `post_weight` (C,) for it.
        """

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """activation(gate) * up, (T, F) out of (T, F + F); `activation` is its name in config.json."""


class Elementwise(LibraryPart):
    """`RowKernels` by a library."""

    def takes(self, x: Tensor) -> bool:
        return x.dim() == 2 and x.dtype in DTYPES and x.device.type == "cpu" and x.is_contiguous()

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        pointers = (x.data_ptr(), weight.data_ptr(), y.data_ptr())
        self.library.herd_norm(*pointers, *x.shape, eps, x.dtype is torch.bfloat16, self.threads)
        return y

    def norm_of_sum(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        alpha: float,
        post_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if post_weight is not None:
            added = self.norm(added, post_weight, eps)
        total = torch.add(x, added, alpha=alpha)
        return total, self.norm(total, weight, eps)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        rows, columns = gate_up.shape
        y = gate_up.new_empty(rows, columns // 2)
        pointers = (gate_up.data_ptr(), y.data_ptr())
        form = ACTIVATION_NUMBERS[activation], gate_up.dtype is torch.bfloat16
        self.library.herd_gate(*pointers, *y.shape, *form, self.threads)
        return y


def load_elementwise(library: ctypes.CDLL) -> Elementwise | None:
    """Load the row kernels of a library; None if they compute wrong."""
    ends = (ctypes.c_bool, ctypes.c_int)  # is bfloat16, threads
    library.herd_norm.restype = library.herd_gate.restype = None
    library.herd_norm.argtypes = [POINTER, POINTER, POINTER, NUMBER, NUMBER, ctypes.c_float, *ends]
    library.herd_gate.argtypes = [POINTER, POINTER, NUMBER, NUMBER, NUMBER, *ends]
    found = Elementwise(library)
    needs = (replace(TRIED, dtype=dtype, activation=name) for dtype in DTYPES for name in ACTIVATION_NUMBERS)
    return found if all(rows_are_right(found, each) for each in needs) else None
