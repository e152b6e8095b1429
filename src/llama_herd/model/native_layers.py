"""NativeLayers: the decoder layers of a model in native calls.

What lies between two calls is Python's work, and memory that has to come up to speed again: together a
quarter of a step of one row. Shapes: T tokens of the ragged batch, C hidden size, K kv heads, D head dim.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import MAX_HEAD_DIM, Scoring
from llama_herd.model.batch import AnyBatch
from llama_herd.model.cache import Cache, Rope
from llama_herd.model.config import LlamaConfig
from llama_herd.model.kernels.attention import AttentionCall, attention_call
from llama_herd.model.kernels.elementwise import ACTIVATION_NUMBERS
from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, members
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.rotation import RotationCall, rotation_call
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.weights.linear import Linear, NativeSegment, Segment

#: So many tokens go through all layers in one call; more take long enough to tell of each layer.
FEW_TOKENS = 64

#: Most segments of one matrix.
MAX_MATRICES = 3


class Vectors(NamedTuple):
    """The weights of a layer's norms, in float32."""

    attention_norm: Tensor  # (C,)
    mlp_norm: Tensor  # (C,)
    attention_post_norm: Tensor | None = None  # of what attention adds, (C,)
    mlp_post_norm: Tensor | None = None  # of what the MLP adds, (C,)
    head_norm: Tensor | None = None  # of queries and keys, (H + K, D)


class LayerParts(NamedTuple):
    """What a layer consists of."""

    norms: Vectors
    linears: tuple[Linear, Linear, Linear, Linear]  # QKV, output, gate and up, down
    scoring: Scoring
    activation: str = "silu"


class MatrixPointer(ctypes.Structure):
    """herd::Matrix: a segment's tiles, which must live as long."""

    _fields_ = members((POINTER, "tiles"), (NUMBER, "rows type"))

    @classmethod
    def to(cls, segment: Segment) -> Self:
        assert isinstance(segment, NativeSegment), f"no tiles in a {type(segment).__name__}"
        return cls(segment.tiles.data_ptr(), segment.num_rows, int(segment.type))


class MatrixPointers(ctypes.Structure):
    """herd::Matrices: a linear's segments and float32 bias, which must live as long."""

    _fields_ = members((MatrixPointer * MAX_MATRICES, "matrix"), (NUMBER, "count"), (POINTER, "bias"))

    @classmethod
    def to(cls, linear: Linear) -> Self:
        segments = map(MatrixPointer.to, linear.segments)
        bias = None if linear.bias is None else linear.bias.data_ptr()
        return cls((MatrixPointer * MAX_MATRICES)(*segments), len(linear.segments), bias)


class _LayerPointer(ctypes.Structure):
    """herd::Layer: a layer's parts, which must live as long."""

    _fields_ = members(
        (POINTER, " ".join(Vectors._fields)),
        (MatrixPointers, "qkv output gate_up down"),
        (NUMBER, "columns window activation"),
        (ctypes.c_float, "eps residual_scale"),
    )

    @classmethod
    def to(cls, layer: LayerParts, *scales: float) -> Self:
        pointers = [None if vector is None else vector.data_ptr() for vector in layer.norms]
        linears = map(MatrixPointers.to, layer.linears)
        numbers = len(layer.norms.attention_norm), layer.scoring.window, ACTIVATION_NUMBERS[layer.activation]
        return cls(*pointers, *linears, *numbers, *scales)


class _Step(ctypes.Structure):
    """herd::LayerStep, which says what each is."""

    _fields_ = members(
        (POINTER, "x y"),
        (NUMBER, "tokens"),
        (ctypes.POINTER(RotationCall), "rotation local_rotation"),
        (ctypes.POINTER(AttentionCall), "attention spans"),
        (POINTER, "span_counts"),
        (NUMBER, "layer_stride"),
        (ctypes.c_int, "kernel num_threads"),
    )


class NativeLayers:
    """All layers in native calls: the same bits as from the parts of the blocks one by one."""

    def __init__(
        self,
        kernels: Kernels,
        layers: Sequence[LayerParts],
        num_heads: int,
        eps: float,
        residual_scale: float = 1.0,
    ) -> None:
        """Take layers by all of whose matrices these kernels multiply."""
        kernels.library.herd_layers.restype = ctypes.c_bool
        kernels.library.herd_layers.argtypes = [POINTER, NUMBER, NUMBER, POINTER, ctypes.c_bool]
        self.kernels = kernels
        self.num_heads = num_heads
        self.scoring = layers[0].scoring  # but for its window, which is each layer's own
        self._alive = tuple(_in_float32(layer) for layer in layers)
        pointers = (_LayerPointer.to(layer, eps, residual_scale) for layer in self._alive)
        self._pointers = (_LayerPointer * len(layers))(*pointers)

    @classmethod
    def if_native(cls, config: LlamaConfig, layers: Sequence[LayerParts]) -> Self | None:
        """Take the layers of a model if native kernels multiply by all their matrices."""
        D = config.head_dim
        if D % 2 or D > MAX_HEAD_DIM:
            return None
        if not all(linear.is_native for layer in layers for linear in layer.linears):
            return None
        first = layers[0].linears[0].segments[0]
        assert isinstance(first, NativeSegment)
        kernels = first.kernels
        if None in (kernels.attention, kernels.rotation, kernels.elementwise):
            return None
        return cls(kernels, layers, config.num_heads, config.rms_eps, config.residual_scale)

    def __len__(self) -> int:
        return len(self._pointers)

    @property
    def address(self) -> int:
        """Where the library finds them, as long as this object lives."""
        return ctypes.addressof(self._pointers)

    def takes(self, x: Tensor, batch: AnyBatch, cache: Cache) -> bool:
        """Whether the layers can run a step: prompts too where a kernel attends to them."""
        prefill = self.kernels.prefill_attention
        return (
            (batch.is_short or (prefill is not None and x.dtype is torch.bfloat16))
            and x.is_contiguous()
            and self.fits(x.dtype, cache)
        )

    def fits(self, dtype: torch.dtype, cache: Cache) -> bool:
        """Whether the layers can compute in a type with such a cache."""
        storage = cache.storage  # (2, layers, K, pages, PAGE_TOKENS, D)
        D = storage.shape[-1]
        return (
            cache.pages.consecutive
            and dtype == storage.dtype
            and dtype in DTYPES
            and storage.shape[4] == PAGE_TOKENS
            and storage.stride()[3:] == (PAGE_TOKENS * D, D, 1)
        )

    def __call__(
        self,
        x: Tensor,
        rope: Rope,
        local_rope: Rope,
        batch: AnyBatch,
        cache: Cache,
        on_layer: Callable[[], None] | None = None,
    ) -> Tensor:
        """Return x (T, C) after all layers. `on_layer` is called after each, or of few tokens at the end.

        `local_rope` is that of layers with a window.
        """
        cached = cache.storage[:, 0]  # (2, K, pages, PAGE_TOKENS, D)
        num_threads = self.kernels.threads
        y = torch.empty_like(x)
        rotations = (rotation_call(self.num_heads, *one, cached, batch.cells) for one in (rope, local_rope))
        attention = attention_call(self.num_heads, cached, batch.seen, self.scoring, num_threads)
        spans, span_counts = AttentionCall(), 0
        if not batch.is_short:
            spans = attention_call(self.num_heads, cached, batch.seen_spans.first, self.scoring, num_threads)
            span_counts = batch.seen_spans.num_tokens.data_ptr()
        step = _Step(
            x.data_ptr(),
            y.data_ptr(),
            len(x),
            *map(ctypes.pointer, (*rotations, attention, spans)),
            span_counts,
            cache.storage.stride(1),
            self.kernels.kernel_for(x.dtype, len(x)),
            num_threads,
        )
        at_once, is_bfloat16 = len(self) if len(x) <= FEW_TOKENS else 1, x.dtype is torch.bfloat16
        run, layers = self.kernels.library.herd_layers, self._pointers
        for first in range(0, len(self), at_once):
            if not run(layers, first, at_once, ctypes.byref(step), is_bfloat16):
                raise torch.OutOfMemoryError("native layers: no memory to work in")
            if on_layer is not None:
                on_layer()
        return y


def _in_float32(layer: LayerParts) -> LayerParts:
    """The same layer, its biases as native code reads them."""
    qkv, output, gate_up, down = (
        linear if linear.bias is None else replace(linear, bias=linear.bias.float())
        for linear in layer.linears
    )
    return layer._replace(linears=(qkv, output, gate_up, down))
