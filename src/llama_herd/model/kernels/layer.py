"""Decoder layers of the plain kind by a native library: all of them in one call.

Shapes: T tokens of the ragged batch, C hidden size, H heads, K kv heads, D head dim.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

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


class MatrixStruct(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Matrix."""

    _fields_ = (("tiles", ctypes.c_void_p), ("rows", ctypes.c_int64), ("type", ctypes.c_int64))

    @classmethod
    def of(cls, matrix: Matrix) -> Self:
        """Pointers into its tensor, which must live as long."""
        return cls(matrix.tiles.data_ptr(), matrix.num_rows, int(matrix.type))


class MatricesStruct(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Matrices."""

    _fields_ = (("matrix", MatrixStruct * MAX_MATRICES), ("count", ctypes.c_int64))

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> Self:
        """Pointers into their tensors, which must live as long."""
        return cls((MatrixStruct * MAX_MATRICES)(*map(MatrixStruct.of, matrices)), len(matrices))


class _Layer(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::Layer."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", MatricesStruct),
        ("output", MatricesStruct),
        ("gate_up", MatricesStruct),
        ("down", MatricesStruct),
        ("columns", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class LayerStep(ctypes.Structure):
    """A ctypes copy of the C++ structure herd::LayerStep."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("rotation", ctypes.POINTER(RotationCall)),
        ("attention", ctypes.POINTER(AttentionCall)),
        ("spans", ctypes.POINTER(AttentionCall)),
        ("span_counts", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
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
    window: int  # keys that a token sees; 0: all
    eps: float

    def as_struct(self) -> _Layer:
        """Pointers into these tensors, which must live as long."""
        return _Layer(
            self.attention_norm.data_ptr(),
            self.mlp_norm.data_ptr(),
            *map(MatricesStruct.of, (self.qkv, self.output, self.gate_up, self.down)),
            len(self.attention_norm),
            self.window,
            self.eps,
        )


class LayerStack:
    """Layers that a library computes."""

    def __init__(self, library: ctypes.CDLL, layers: Sequence[LayerWeights]) -> None:
        library.herd_layers.restype = ctypes.c_bool
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        library.herd_layers.argtypes = [pointer, number, number, pointer, ctypes.c_bool]
        self._library = library
        self._layers = tuple(layers)
        self._structs = (_Layer * len(layers))(*(layer.as_struct() for layer in layers))

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def address(self) -> int:
        """Where the library finds them, as long as this object lives."""
        return ctypes.addressof(self._structs)

    def __call__(self, step: LayerStep, first: int, count: int, *, is_bfloat16: bool) -> None:
        """Compute some layers of a step, which went through those before `first` already."""
        if not self._library.herd_layers(self._structs, first, count, ctypes.byref(step), is_bfloat16):
            raise torch.OutOfMemoryError("native layers: no memory to work in")
