"""RMSNorm and SwiGLU by a native library: each in one pass over its rows.

Shapes: T tokens of the ragged batch, C hidden size, F ffn size.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart

#: What float32 may round, and what one rounding to bfloat16 changes at most, in parts of a number.
FLOAT32_ROUNDING, BFLOAT16_ROUNDING = 3e-6, 2**-8


class RowKernels(Protocol):
    """Kernels for work on each row by itself: norms and SwiGLU."""

    def takes(self, x: Tensor) -> bool:
        """Whether it is made for such rows."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x (T, C) / sqrt(mean(x^2) + eps) * weight (C,), which is float32."""

    def norm_of_sum(
        self, x: Tensor, added: Tensor, weight: Tensor, eps: float, alpha: float
    ) -> tuple[Tensor, Tensor]:
        """x + alpha * added, and that normalised: (T, C) each."""

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, (T, F) out of (T, F + F)."""


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
        self, x: Tensor, added: Tensor, weight: Tensor, eps: float, alpha: float
    ) -> tuple[Tensor, Tensor]:
        total = torch.add(x, added, alpha=alpha)
        return total, self.norm(total, weight, eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        rows, columns = gate_up.shape
        y = gate_up.new_empty(rows, columns // 2)
        pointers = (gate_up.data_ptr(), y.data_ptr())
        is_bfloat16 = gate_up.dtype is torch.bfloat16
        self.library.herd_swiglu(*pointers, *y.shape, is_bfloat16, self.threads)
        return y


def load_elementwise(library: ctypes.CDLL) -> Elementwise | None:
    """Load the row kernels of a library; None if they compute wrong."""
    ends = (ctypes.c_bool, ctypes.c_int)  # is bfloat16, threads
    library.herd_norm.restype = library.herd_swiglu.restype = None
    library.herd_norm.argtypes = [POINTER, POINTER, POINTER, NUMBER, NUMBER, ctypes.c_float, *ends]
    library.herd_swiglu.argtypes = [POINTER, POINTER, NUMBER, NUMBER, *ends]
    found = Elementwise(library)
    x, weight = torch.randn(3, 310) * 3, torch.randn(310)
    right = all(
        is_close(found.norm(rows, weight, 1e-5), exact_norm(rows, weight, 1e-5))
        and is_close(found.swiglu(rows), exact_swiglu(rows))
        for rows in (x, x.bfloat16())
    )
    return found if right else None


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64."""
    wide = x.double()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()


def exact_swiglu(gate_up: Tensor) -> Tensor:
    """SwiGLU in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return silu(gate) * up


def is_close(y: Tensor, exact: Tensor) -> bool:
    """Whether y is what it would be in float64, but for rounding."""
    rounding = FLOAT32_ROUNDING + (BFLOAT16_ROUNDING if y.dtype is torch.bfloat16 else 0)
    return bool(((y.double() - exact).abs() <= rounding * exact.abs() + 1e-30).all())
