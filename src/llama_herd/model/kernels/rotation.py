"""RoPE and the write into the cache by a native library: one call a layer.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim, N cells of a cache.
"""

import ctypes
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart, members
from llama_herd.model.kernels.trials import TRIED, rotation_is_right


class HeadNorm(Protocol):
    """An RMSNorm of queries and keys, head by head."""

    @property
    def weight(self) -> Tensor:  # (H + K, D) float32
        ...

    @property
    def eps(self) -> float: ...


class RotationKernel(Protocol):
    """Normalises and turns queries and keys and writes into a cache."""

    def takes(self, qkv: Tensor, cached: Tensor) -> bool:
        """Whether it is made for qkv (T, H + K + K, D) and keys and values (2, K, pages, PAGE_TOKENS, D)."""

    def __call__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, cached: Tensor, cells: Tensor, norm: HeadNorm | None
    ) -> None:
        """Turn queries and keys in qkv (T, H + K + K, D) by cos and sin (T, 1, D); keep keys and values.

        Queries and keys are normalised before, if there is a norm. `cached` are a layer's
        (2, K, pages, PAGE_TOKENS, D), `cells` (T,) say where in it they go.
        """


def are_turnable(qkv: Tensor, cached: Tensor) -> bool:
    """Whether queries, keys and values, and a layer's cached ones, lie as all kernels read them."""
    page_tokens, head_dim = cached.shape[3:]
    return (
        qkv.dtype == cached.dtype
        and qkv.is_contiguous()
        and head_dim % 2 == 0
        and cached.stride()[2:] == (page_tokens * head_dim, head_dim, 1)
    )


class RotationCall(ctypes.Structure):
    """herd::Rotation, which says what each is."""

    _fields_ = members(
        (POINTER, "qkv cos sin cells keys values"),
        (NUMBER, "head_stride tokens heads kv_heads head_dim"),
        (POINTER, "norm"),
        (ctypes.c_float, "eps"),
    )


class Rotation(LibraryPart):
    """`RotationKernel` by a library."""

    def takes(self, qkv: Tensor, cached: Tensor) -> bool:
        return qkv.dtype in DTYPES and qkv.device.type == "cpu" and are_turnable(qkv, cached)

    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cached: Tensor,
        cells: Tensor,
        norm: HeadNorm | None = None,
    ) -> None:
        call = rotation_call(qkv.shape[1] - 2 * cached.shape[1], cos, sin, cached, cells)
        call.qkv = qkv.data_ptr()
        if norm is not None:
            call.norm, call.eps = norm.weight.data_ptr(), norm.eps
        self.library.herd_rotate(ctypes.byref(call), qkv.dtype is torch.bfloat16, self.threads)


def rotation_call(num_heads: int, cos: Tensor, sin: Tensor, cached: Tensor, cells: Tensor) -> RotationCall:
    """The arguments of a rotation, but for the queries, keys and values, and what these get before."""
    to_values, to_head = cached.stride()[:2]
    return RotationCall(
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        cells=cells.data_ptr(),
        keys=cached.data_ptr(),
        values=cached.data_ptr() + to_values * cached.itemsize,
        head_stride=to_head,
        tokens=len(cells),
        heads=num_heads,
        kv_heads=cached.shape[1],
        head_dim=cached.shape[-1],
    )


def load_rotation(library: ctypes.CDLL) -> Rotation | None:
    """The rotation of a library, if it is right."""
    library.herd_rotate.restype = None
    library.herd_rotate.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_int]
    rotation = Rotation(library)
    needs = (replace(TRIED, dtype=dtype, qk_norm=has_norm) for dtype in DTYPES for has_norm in (False, True))
    return rotation if all(rotation_is_right(rotation, each) for each in needs) else None
