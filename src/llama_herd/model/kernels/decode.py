"""Steps of single tokens through a whole plain model by a native library: from ids to logits in one call.

Shapes: B tokens, V vocabulary, C hidden size, S positions, K kv heads, D head dim.
"""

import ctypes
from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Seen
from llama_herd.model.kernels.attention import AttentionCall, attention_call
from llama_herd.model.kernels.layer import LayerStack, MatricesStruct, Matrix, MatrixStruct
from llama_herd.model.kernels.rotation import RotationCall, rotation_call
from llama_herd.model.kernels.scoring import Scoring


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

    _fields_ = (
        ("embedding", MatrixStruct),
        ("layers", ctypes.c_void_p),
        ("num_layers", ctypes.c_int64),
        ("norm", ctypes.c_void_p),
        ("output", MatricesStruct),
        ("rotation", RotationCall),
        ("attention", AttentionCall),
        ("layer_stride", ctypes.c_int64),
    )


class _Step(ctypes.Structure):
    """herd::DecodeStep, which says what each is."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("largest", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("kernel", ctypes.c_int),
        ("num_threads", ctypes.c_int),
    )


class _Outcome(IntEnum):
    """herd::Outcome."""

    DONE = 0
    NO_MEMORY = 1
    NO_ROW = 2


class Decoder:
    """A plain model and its cache, whose steps a library computes."""

    def __init__(
        self,
        library: ctypes.CDLL,
        embedding: Matrix,
        layers: LayerStack,
        norm: Tensor,
        output: Sequence[Matrix],
        cos: Tensor,
        sin: Tensor,
        cached: Tensor,
        num_heads: int,
        scoring: Scoring,
        max_tokens: int,
    ) -> None:
        """No step has more than `max_tokens` tokens.

        norm (C,), cos and sin of all positions (S, 1, D), a cache (2, layers, K, pages, PAGE_TOKENS, D).
        """
        library.herd_decode.restype = ctypes.c_int
        library.herd_decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool]
        self.max_tokens = max_tokens
        self._library = library
        self._alive = (embedding, layers, norm, output, cos, sin, cached)
        self._vocab_size = sum(matrix.num_rows for matrix in output)
        self._is_bfloat16 = cached.dtype is torch.bfloat16
        none, of_layer = torch.empty(0, dtype=torch.int64), cached[:, 0]
        self._decoder = _Decoder(
            MatrixStruct.of(embedding),
            layers.address,
            len(layers),
            norm.data_ptr(),
            MatricesStruct.of(output),
            rotation_call(num_heads, cos, sin, of_layer, none),
            attention_call(num_heads, of_layer, Seen(none, none, none, none), scoring, 0),
            cached.stride(1),
        )
        self._logits = norm.new_empty(max_tokens, self._vocab_size)
        self._largest = (ctypes.c_float * max_tokens)()
        self._ids = (ctypes.c_int64 * max_tokens)()

    def __call__(self, tokens: Sequence[Token], kernel: int, num_threads: int) -> Decoded:
        """Compute one more token of each of some sequences, keep its keys and values; say what follows."""
        numbers, count = array("q", chain.from_iterable(tokens)), len(tokens)
        assert count <= self.max_tokens, f"{count} tokens in a step of {self.max_tokens}"
        step = _Step(
            numbers.buffer_info()[0],
            count,
            self._logits.data_ptr(),
            ctypes.addressof(self._largest),
            ctypes.addressof(self._ids),
            kernel,
            num_threads,
        )
        outcome = self._library.herd_decode(
            ctypes.byref(self._decoder), ctypes.byref(step), self._is_bfloat16
        )
        if outcome == _Outcome.NO_MEMORY:
            raise torch.OutOfMemoryError("native decoder: no memory to work in")
        if outcome == _Outcome.NO_ROW:
            raise IndexError(f"rows {[token.id for token in tokens]} of {self._decoder.embedding.rows}")
        return Decoded(self._logits[:count], self._largest[:count], self._ids[:count])
