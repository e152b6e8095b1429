"""RMSNorm and gates by a native library: each in one pass over its rows.

Shapes: T tokens of the ragged batch, C hidden size, F ffn size.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart

#: What float32 may round, and what one rounding to bfloat16 changes at most, in parts of a number.
FLOAT32_ROUNDING, BFLOAT16_ROUNDING = 3e-6, 2**-8


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
    x, weight = torch.randn(3, 310) * 3, torch.randn(310)
    right = all(
        is_close(found.norm(rows, weight, 1e-5), exact_norm(rows, weight, 1e-5))
        and all(is_gated_right(found, rows, activation) for activation in ACTIVATION_NUMBERS)
        for rows in (x, x.bfloat16())
    )
    return found if right else None


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64."""
    wide = x.double()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()


def exact_gate(gate_up: Tensor, activation: str) -> Tensor:
    """A gate in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up


def is_close(y: Tensor, exact: Tensor, size: Tensor | float = 0.0) -> bool:
    """Whether y is what it would be in float64, but for rounding, also of numbers of a size."""
    rounding = FLOAT32_ROUNDING + (BFLOAT16_ROUNDING if y.dtype is torch.bfloat16 else 0)
    return bool(((y.double() - exact).abs() <= rounding * exact.abs() + 1e-8 * size + 1e-30).all())


def is_gated_right(kernels: RowKernels, gate_up: Tensor, activation: str) -> bool:
    """Whether a gate is what float64 says: of a gelu that is all but shut, but for a bit of its input."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    size = 0.0 if activation == "silu" else (gate * up).abs()
    return is_close(kernels.gate(gate_up, activation), exact_gate(gate_up, activation), size)
