"""NativeDecoder: steps in which every sequence gets one token, each in one native call.

From ids to the likeliest tokens nothing is Python's work: beside a small model's own it took two thirds as
long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from llama_herd.model.cache import Cache
from llama_herd.model.kernels.decode import Decoded, Decoder, Token
from llama_herd.model.kernels.layer import Matrix
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_layers import FEW_TOKENS, NativeLayers, matrices_of
from llama_herd.model.weights.native_segment import NativeSegment


@dataclass(frozen=True, eq=False)
class NativeDecoder:
    """A plain model on its cache: the same bits as from `Llama.forward`, of at most FEW_TOKENS tokens."""

    decoder: Decoder
    layers: NativeLayers
    dtype: torch.dtype

    @classmethod
    def if_plain(cls, llama: Llama, cache: Cache) -> Self | None:
        """Take a model whose layers are native ones, and so are its embedding and its output."""
        layers, embedding, output, config = llama.native, llama.embedding, llama.output, llama.config
        is_scaled = config.embedding_scale != 1 or config.logit_divisor != 1 or config.logit_cap != 0
        if layers is None or is_scaled or llama.tiling.is_fixed:
            return None
        if not isinstance(embedding, NativeSegment) or not output.is_native or output.bias is not None:
            return None
        if not layers.fits(embedding.dtype, cache):
            return None
        decoder = Decoder(
            layers.kernels.library,
            Matrix(embedding.tiles, embedding.num_rows, embedding.type),
            layers.stack,
            llama.norm.weight,
            matrices_of(output),
            *cache.rope_table,
            cache.storage,
            layers.num_heads,
            layers.scoring,
            FEW_TOKENS,
        )
        return cls(decoder, layers, embedding.dtype)

    def __call__(self, tokens: Sequence[Token]) -> Decoded:
        """Compute one more token of each of some sequences, and keep their keys and values."""
        kernel = self.layers.kernels.kernel_for(self.dtype, len(tokens))
        return self.decoder(tokens, kernel, self.layers.num_threads)
