"""NativeBlock: a decoder layer of the plain kind in one native call, for steps of few tokens.

What lies between two calls is Python's work, and memory that has to come up to speed again: together a
quarter of a step of one row. Shapes: T tokens of the ragged batch, C hidden size, K kv heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from llama_herd.model.cache import Cache, Rope
from llama_herd.model.config import LlamaConfig
from llama_herd.model.decode_batch import AnyBatch
from llama_herd.model.kernels.attention import DTYPES, attention_call
from llama_herd.model.kernels.layer import LayerWeights, Matrix, NativeLayer
from llama_herd.model.kernels.layout import MAX_HEAD_DIM
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.rotation import rotation_call
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.linear import Linear
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.weights.native_segment import NativeSegment

#: With more tokens Python's part is small.
MAX_TOKENS = 64


@dataclass(frozen=True, eq=False)
class NativeBlock:
    """A decoder layer in one native call: the same bits as from the parts of its Block one by one."""

    native: NativeLayer
    kernels: Kernels
    layer: int
    num_heads: int
    scoring: Scoring

    @classmethod
    def if_plain(
        cls,
        config: LlamaConfig,
        layer: int,
        norms: tuple[Tensor, Tensor],
        linears: Sequence[Linear],
        scoring: Scoring,
    ) -> Self | None:
        """Make the block of a layer by its norms and its QKV, output, gate and up, down; None: not plain."""
        D = config.head_dim
        if not config.family.has_plain_block or config.residual_scale != 1 or D % 2 or D > MAX_HEAD_DIM:
            return None
        if not all(linear.is_native and linear.bias is None for linear in linears):
            return None
        segments = [[one for one in linear.segments if isinstance(one, NativeSegment)] for linear in linears]
        kernels = segments[0][0].kernels
        if None in (kernels.attention, kernels.rotation, kernels.elementwise):
            return None
        qkv, output, gate_up, down = (
            [Matrix(one.tiles, one.num_rows, one.type) for one in found] for found in segments
        )
        weights = LayerWeights(*norms, qkv, output, gate_up, down, config.rms_eps)
        native = NativeLayer(kernels.library, weights)
        return cls(native, kernels, layer, config.num_heads, scoring)

    def takes(self, x: Tensor, batch: AnyBatch, cache: Cache) -> bool:
        """Whether the block can run a step: few tokens, each of a sequence that decodes."""
        storage = cache.storage  # (2, layers, K, pages, PAGE_TOKENS, D)
        D = storage.shape[-1]
        return (
            len(x) <= MAX_TOKENS
            and batch.is_short
            and cache.pages.consecutive
            and x.dtype == storage.dtype
            and x.dtype in DTYPES
            and x.is_contiguous()
            and storage.shape[4] == PAGE_TOKENS
            and storage.stride()[3:] == (PAGE_TOKENS * D, D, 1)
        )

    def __call__(self, x: Tensor, rope: Rope, batch: AnyBatch, cache: Cache) -> Tensor:
        """Return x (T, C) after the layer."""
        cached = cache.storage[:, self.layer]  # (2, K, pages, PAGE_TOKENS, D)
        num_threads = self.kernels.num_threads or torch.get_num_threads()
        rotation = rotation_call(self.num_heads, *rope, cached, batch.cells)
        attention = attention_call(self.num_heads, cached, batch.seen, self.scoring, num_threads)
        kernel = self.kernels.kernel_for(x.dtype, len(x))
        return self.native(x, rotation, attention, kernel, num_threads)
