"""NativeDecoder: steps in which every sequence gets one token, each in one native call.

From ids to the likeliest tokens nothing is Python's work: beside a small model's own it took two thirds as
long. Shapes: B tokens, V vocabulary, C hidden size, S positions, K kv heads, D head dim.
"""

import ctypes
from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Seen
from llama_herd.model.cache import Cache, Rope
from llama_herd.model.kernels.attention import AttentionCall, attention_call
from llama_herd.model.kernels.library import NUMBER, POINTER, members
from llama_herd.model.kernels.rotation import RotationCall, rotation_call
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_layers import FEW_TOKENS, MatrixPointer, MatrixPointers, NativeLayers
from llama_herd.model.weights.linear import Linear, NativeSegment, Segment


class Token(NamedTuple):
    """A token to compute: herd::Token."""

    id: int
    position: int
    first_page: int  # of its sequence, whose pages are consecutive


class Decoded(NamedTuple):
    """What a step has found. The next step overwrites the logits."""

    logits: Tensor  # (B, V) float32
    largest: list[float]  # logits of each token
    ids: list[int]  # the first that have them


class _Decoder(ctypes.Structure):
    """herd::Decoder, which says what each is."""

    _fields_ = members(
        (MatrixPointer, "embedding"),
        (POINTER, "layers"),
        (NUMBER, "num_layers"),
        (POINTER, "norm"),
        (MatrixPointers, "output"),
        (RotationCall, "rotation"),
        (AttentionCall, "attention"),
        (NUMBER, "layer_stride"),
    )


class _Step(ctypes.Structure):
    """herd::DecodeStep, which says what each is."""

    _fields_ = members(
        (POINTER, "tokens"),
        (NUMBER, "num_tokens"),
        (POINTER, "logits largest ids"),
        (ctypes.c_int, "kernel num_threads"),
    )


class _Outcome(IntEnum):
    """herd::Outcome."""

    DONE = 0
    NO_MEMORY = 1
    NO_ROW = 2


class NativeDecoder:
    """A plain model on its cache: the same bits as from `Llama.forward`, of at most `max_tokens` tokens."""

    def __init__(
        self,
        embedding: Segment,
        layers: NativeLayers,
        norm: Tensor,
        output: Linear,
        rope: Rope,
        cached: Tensor,
        max_tokens: int = FEW_TOKENS,
    ) -> None:
        """Take a model's parts, all multiplied by native kernels, its norm (C,), and its cache.

        `rope` is of all positions (S, 1, D), `cached` is (2, layers, K, pages, PAGE_TOKENS, D).
        """
        self._layers, self._library = layers, layers.kernels.library
        self._library.herd_decode.restype = ctypes.c_int
        self._library.herd_decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool]
        self._alive = (embedding, norm, output, rope, cached)
        self._dtype = cached.dtype
        none, of_layer = torch.empty(0, dtype=torch.int64), cached[:, 0]
        self._decoder = _Decoder(
            MatrixPointer.to(embedding),
            layers.address,
            len(layers),
            norm.data_ptr(),
            MatrixPointers.to(output),
            rotation_call(layers.num_heads, *rope, of_layer, none),
            attention_call(layers.num_heads, of_layer, Seen(none, none, none, none), layers.scoring, 0),
            cached.stride(1),
        )
        vocab_size = sum(matrix.rows for matrix in self._decoder.output.matrix)
        self._logits = norm.new_empty(max_tokens, vocab_size)
        self._largest = (ctypes.c_float * max_tokens)()
        self._ids = (ctypes.c_int64 * max_tokens)()

    @classmethod
    def if_plain(cls, llama: Llama, cache: Cache) -> Self | None:
        """Take a model whose layers are native ones, and so are its embedding and its output."""
        layers, embedding, output, config = llama.native, llama.embedding, llama.output, llama.config
        is_scaled = config.embedding_scale != 1 or config.logit_divisor != 1 or config.logit_cap != 0
        if layers is None or is_scaled or config.local_rope_base or llama.tiling.is_fixed:
            return None
        if output is None or not output.is_native or output.bias is not None:
            return None
        if not isinstance(embedding, NativeSegment):
            return None
        if not layers.fits(embedding.dtype, cache):
            return None
        return cls(embedding, layers, llama.norm.weight, output, cache.rope_table, cache.storage)

    def __call__(self, tokens: Sequence[Token]) -> Decoded:
        """Compute one more token of each of some sequences, keep its keys and values; say what follows."""
        numbers, count = array("q", chain.from_iterable(tokens)), len(tokens)
        assert count <= len(self._ids), f"{count} tokens in a step of {len(self._ids)}"
        step = _Step(
            numbers.buffer_info()[0],
            count,
            self._logits.data_ptr(),
            ctypes.addressof(self._largest),
            ctypes.addressof(self._ids),
            self._layers.kernels.kernel_for(self._dtype, count),
            self._layers.kernels.threads,
        )
        is_bfloat16 = self._dtype is torch.bfloat16
        outcome = self._library.herd_decode(ctypes.byref(self._decoder), ctypes.byref(step), is_bfloat16)
        if outcome == _Outcome.NO_MEMORY:
            raise torch.OutOfMemoryError("native decoder: no memory to work in")
        if outcome == _Outcome.NO_ROW:
            raise IndexError(f"rows {[token.id for token in tokens]} of {self._decoder.embedding.rows}")
        return Decoded(self._logits[:count], self._largest[:count], self._ids[:count])
