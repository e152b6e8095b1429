"""NativeLayers: the decoder layers of a plain model in native calls.

What lies between two calls is Python's work, and memory that has to come up to speed again: together a
quarter of a step of one row. Shapes: T tokens of the ragged batch, C hidden size, K kv heads, D head dim.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.cache import Cache, Rope
from llama_herd.model.config import LlamaConfig
from llama_herd.model.decode_batch import AnyBatch, DecodeBatch
from llama_herd.model.kernels.attention import DTYPES, AttentionCall, attention_call
from llama_herd.model.kernels.layer import LayerStack, LayerStep, LayerWeights, Matrix
from llama_herd.model.kernels.layout import MAX_HEAD_DIM
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.rotation import rotation_call
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.linear import Linear
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.weights.native_segment import NativeSegment

#: So many tokens go through all layers in one call; more take long enough to tell of each layer.
FEW_TOKENS = 64


class LayerParts(NamedTuple):
    """What a plain layer consists of."""

    norms: tuple[Tensor, Tensor]  # before attention and MLP, (C,) each
    linears: tuple[Linear, Linear, Linear, Linear]  # QKV, output, gate and up, down
    scoring: Scoring


@dataclass(frozen=True, eq=False)
class NativeLayers:
    """All layers in native calls: the same bits as from the parts of the blocks one by one."""

    stack: LayerStack
    kernels: Kernels
    num_heads: int
    scoring: Scoring  # but for its window, which is each layer's own

    @classmethod
    def if_plain(cls, config: LlamaConfig, layers: Sequence[LayerParts]) -> Self | None:
        """Take the layers of a model if they are plain and native kernels multiply by all their matrices."""
        D = config.head_dim
        if not config.family.has_plain_block or config.residual_scale != 1 or config.local_rope_base:
            return None
        if D % 2 or D > MAX_HEAD_DIM:
            return None
        linears = [linear for layer in layers for linear in layer.linears]
        if not all(linear.is_native and linear.bias is None for linear in linears):
            return None
        first = linears[0].segments[0]
        assert isinstance(first, NativeSegment)
        kernels = first.kernels
        if None in (kernels.attention, kernels.rotation, kernels.elementwise):
            return None
        weights = [_weights(layer, config.rms_eps) for layer in layers]
        return cls(LayerStack(kernels.library, weights), kernels, config.num_heads, layers[0].scoring)

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

    @property
    def num_threads(self) -> int:
        return self.kernels.num_threads or torch.get_num_threads()

    def __call__(
        self, x: Tensor, rope: Rope, batch: AnyBatch, cache: Cache, on_layer: Callable[[], None] | None = None
    ) -> Tensor:
        """Return x (T, C) after all layers. `on_layer` is called after each, or of few tokens at the end."""
        cached = cache.storage[:, 0]  # (2, K, pages, PAGE_TOKENS, D)
        num_threads = self.num_threads
        y = torch.empty_like(x)
        rotation = rotation_call(self.num_heads, *rope, cached, batch.cells)
        attention = attention_call(self.num_heads, cached, batch.seen, self.scoring, num_threads)
        spans, span_counts = AttentionCall(), 0
        if not (isinstance(batch, DecodeBatch) or batch.is_short):
            spans = attention_call(self.num_heads, cached, batch.seen_spans.first, self.scoring, num_threads)
            span_counts = batch.seen_spans.num_tokens.data_ptr()
        step = LayerStep(
            x.data_ptr(),
            y.data_ptr(),
            len(x),
            *map(ctypes.pointer, (rotation, attention, spans)),
            span_counts,
            cache.storage.stride(1),
            self.kernels.kernel_for(x.dtype, len(x)),
            num_threads,
        )
        at_once = len(self.stack) if len(x) <= FEW_TOKENS else 1
        for first in range(0, len(self.stack), at_once):
            self.stack(step, first, at_once, is_bfloat16=x.dtype is torch.bfloat16)
            if on_layer is not None:
                on_layer()
        return y


def _weights(layer: LayerParts, eps: float) -> LayerWeights:
    qkv, output, gate_up, down = map(matrices_of, layer.linears)
    return LayerWeights(*layer.norms, qkv, output, gate_up, down, layer.scoring.window, eps)


def matrices_of(linear: Linear) -> list[Matrix]:
    """The matrices of a linear that is native."""
    segments = [one for one in linear.segments if isinstance(one, NativeSegment)]
    return [Matrix(one.tiles, one.num_rows, one.type) for one in segments]
