"""RoPE and the write into the cache by a native library: one call a layer.

Shapes: T tokens of the ragged batch, H heads, K kv heads, D head dim, N cells of a cache.
"""

import ctypes
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from llama_herd.model.kernels.library import DTYPES, NUMBER, POINTER, LibraryPart, members


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
        page_tokens, head_dim = cached.shape[3:]
        return (
            qkv.dtype == cached.dtype
            and qkv.dtype in DTYPES
            and qkv.device.type == "cpu"
            and qkv.is_contiguous()
            and head_dim % 2 == 0
            and cached.stride()[2:] == (page_tokens * head_dim, head_dim, 1)
        )

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
    kinds = product(DTYPES, (False, True))
    return rotation if all(_is_right(rotation, dtype, has_norm) for dtype, has_norm in kinds) else None


class TriedNorm(NamedTuple):
    """A `HeadNorm` to try kernels with."""

    weight: Tensor
    eps: float


def _is_right(rotation: Rotation, dtype: torch.dtype, has_norm: bool) -> bool:
    """Whether random numbers are normalised and turned as torch does it, and put where they belong."""
    T, H, K, D, cells = 5, 3, 2, 44, torch.tensor([3, 1, 130, 64, 7])
    qkv, (cos, sin) = torch.randn(T, H + 2 * K, D).to(dtype), torch.randn(2, T, 1, D)
    cached = torch.zeros(2, K, 3, 64, D, dtype=dtype)
    qk, values = qkv[:, : H + K].float(), qkv[:, H + K :].clone()
    norm = TriedNorm(torch.rand(H + K, D) + 0.5, 1e-5) if has_norm else None
    if norm is not None:
        qk = qk * (qk.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
    expected = qk * cos + qk.roll(D // 2, dims=-1) * sin
    rotation(qkv, cos, sin, cached, cells, norm)
    keys, found = cached.flatten(2, 3)[:, :, cells].transpose(1, 2)  # (T, K, D) each
    rounding = 1e-5 if dtype is torch.float32 else 2 ** -(6 if has_norm else 7)  # rounded once more
    is_turned = torch.allclose(qkv[:, : H + K].float(), expected, atol=rounding, rtol=rounding)
    is_kept = keys.equal(qkv[:, H : H + K]) and found.equal(values)
    return is_turned and is_kept and bool(cached.count_nonzero() <= 2 * T * K * D)
