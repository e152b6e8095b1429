"""A decoder layer of the plain kind by a native library: few tokens in one call.

Shapes: T tokens of the ragged batch, C hidden size, H heads, K kv heads, D head dim.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.attention import AttentionCall
from llama_herd.model.kernels.rotation import RotationCall

MAX_MATRICES = 3


class Matrix(NamedTuple):
    """A matrix of quantised rows in tiles."""

    tiles: Tensor  # uint8 (R, K, bytes of a tile)
    num_rows: int
    type: GGMLType


class _Matrix(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Matrix."""

    _fields_ = (("tiles", ctypes.c_void_p), ("rows", ctypes.c_int64), ("type", ctypes.c_int64))


class _Matrices(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Matrices."""

    _fields_ = (("matrix", _Matrix * MAX_MATRICES), ("count", ctypes.c_int64))


class _Layer(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Layer."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", _Matrices),
        ("output", _Matrices),
        ("gate_up", _Matrices),
        ("down", _Matrices),
        ("columns", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::LayerStep."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("rotation", ctypes.POINTER(RotationCall)),
        ("attention", ctypes.POINTER(AttentionCall)),
        ("kernel", ctypes.c_int),
        ("num_threads", ctypes.c_int),
    )


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of a layer: norms (C,) in float32, and matrices, those of one input together."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv: Sequence[Matrix]
    output: Sequence[Matrix]
    gate_up: Sequence[Matrix]
    down: Sequence[Matrix]
    eps: float

    def as_struct(self) -> ctypes.Structure:
        """Pointers into these tensors, which must live as long."""
        return _Layer(
            self.attention_norm.data_ptr(),
            self.mlp_norm.data_ptr(),
            *map(_matrices, (self.qkv, self.output, self.gate_up, self.down)),
            len(self.attention_norm),
            self.eps,
        )


class NativeLayer:
    """A layer that a library computes as a whole."""

    def __init__(self, library: ctypes.CDLL, weights: LayerWeights) -> None:
        library.herd_layer.restype = ctypes.c_bool
        library.herd_layer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool]
        self._library = library
        self._weights = weights
        self._struct = weights.as_struct()

    def __call__(
        self, x: Tensor, rotation: RotationCall, attention: AttentionCall, kernel: int, num_threads: int
    ) -> Tensor:
        """Compute the layer for x (T, C): (T, C). The calls come without their queries and results."""
        y = torch.empty_like(x)
        step = _Step(
            x.data_ptr(),
            y.data_ptr(),
            len(x),
            ctypes.pointer(rotation),
            ctypes.pointer(attention),
            kernel,
            num_threads,
        )
        layer = ctypes.byref(self._struct)
        if not self._library.herd_layer(layer, ctypes.byref(step), x.dtype is torch.bfloat16):
            raise torch.OutOfMemoryError("native layer: no memory to work in")
        return y


def _matrices(found: Sequence[Matrix]) -> _Matrices:
    matrices = [_Matrix(one.tiles.data_ptr(), one.num_rows, int(one.type)) for one in found]
    return _Matrices((_Matrix * MAX_MATRICES)(*matrices), len(matrices))
