"""RMSNorm, gates and RoPE with its write into the cache by Triton: a launch each.

Shapes: T tokens of the ragged batch, C hidden size, F ffn size, H heads, K kv heads, D head dim.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2
from triton.language import constexpr

from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.rotation import HeadNorm, are_turnable

#: gelu_pytorch_tanh is x * sigmoid(SLOPE * x + BEND * x^3).
SLOPE, BEND = constexpr(1.5957691216057308), constexpr(0.07135481282553892)


@triton.jit
def normalised(wide, columns, eps):
    """A row of float32, divided by the root of the mean of its squares."""
    return wide * (1 / tl.sqrt_rn(tl.sum(wide * wide, 0) / columns + eps))


@triton.jit
def normalise(
    x,  # (T, C)
    added,  # (T, C)
    post_weight,  # (C,) float32
    weight,  # (C,) float32
    total,  # (T, C)
    y,  # (T, C)
    columns,
    eps,
    share,
    COLUMNS: constexpr,
    IS_SUM: constexpr,  # else total is x
    HAS_POST_NORM: constexpr,  # added is normalised before
):
    """One row: total = x + share * added, rounded; y = total / sqrt(mean(total^2) + eps) * weight."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    mask, own = column < columns, row * columns + column
    wide = tl.load(x + own, mask=mask, other=0.0).to(tl.float32)
    if IS_SUM:
        more = tl.load(added + own, mask=mask, other=0.0).to(tl.float32)
        if HAS_POST_NORM:
            more = normalised(more, columns, eps) * tl.load(post_weight + column, mask=mask, other=0.0)
        rounded = (wide + share * more).to(total.dtype.element_ty)
        tl.store(total + own, rounded, mask=mask)
        wide = rounded.to(tl.float32)
    found = normalised(wide, columns, eps) * tl.load(weight + column, mask=mask, other=0.0)
    tl.store(y + own, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gate(gate_up, y, columns, COLUMNS: constexpr, ACTIVATION: constexpr):
    """Some columns of a row: activation(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    own = gate_up + row * (2 * columns) + column
    gates = tl.load(own, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(own + columns, mask=mask, other=0.0).to(tl.float32)
    steep = gates  # an activation is gate * sigmoid(this)
    if ACTIVATION == "gelu_pytorch_tanh":
        steep *= SLOPE + BEND * gates * gates
    found = gates / (1 + tl.exp(-steep)) * up
    tl.store(y + row * columns + column, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def turn_and_keep(
    qkv,  # (T, H + K + K, D)
    cos,  # (T, D) float32
    sin,
    cells,  # (T,) int64
    keys,  # (K, cells, D), the heads `kv_head` numbers apart
    values,
    norm,  # (H + K, D) float32
    kv_head,
    eps,
    HEADS: constexpr,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    HALF_PADDED: constexpr,
    AT_ONCE: constexpr,  # heads of a program
    HAS_NORM: constexpr,  # queries and keys are normalised before, head by head
):
    """Some heads of one token: queries are turned where they lie, keys into the cache; values are copied."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)[:, None]
    number = tl.arange(0, HALF_PADDED)[None, :]
    half: constexpr = HEAD_DIM // 2
    mask = (number < half) & (head < HEADS + 2 * KV_HEADS)
    own = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + number
    first, second = tl.load(own, mask=mask, other=0.0), tl.load(own + half, mask=mask, other=0.0)
    low, high, in_half = first.to(tl.float32), second.to(tl.float32), number < half
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
    if HAS_NORM:
        scale = 1 / tl.sqrt_rn(tl.sum(low * low + high * high, 1) / HEAD_DIM + eps)[:, None]
        weight = norm + head * HEAD_DIM + number
        low *= scale * tl.load(weight, mask=mask & ~is_value)
        high *= scale * tl.load(weight + half, mask=mask & ~is_value)
    cos += token * HEAD_DIM + number
    sin += token * HEAD_DIM + number
    turned = low * tl.load(cos, mask=in_half) + high * tl.load(sin, mask=in_half)
    swapped = high * tl.load(cos + half, mask=in_half) + low * tl.load(sin + half, mask=in_half)
    turned, swapped = turned.to(first.dtype), swapped.to(first.dtype)
    tl.store(own, turned, mask=mask & is_query)
    tl.store(own + half, swapped, mask=mask & is_query)
    cell = tl.load(cells + token) * HEAD_DIM + number
    key = keys + (head - HEADS).to(tl.int64) * kv_head + cell
    is_key = mask & ~is_query & ~is_value
    tl.store(key, turned, mask=is_key)
    tl.store(key + half, swapped, mask=is_key)
    value = values + (head - HEADS - KV_HEADS).to(tl.int64) * kv_head + cell
    tl.store(value, first, mask=mask & is_value)
    tl.store(value + half, second, mask=mask & is_value)


#: What a kernel is called with.
Given = dict[str, Tensor | int | float]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: Columns that one program gates.
GATE_COLUMNS = 1_024
#: Heads that one program turns: with one each, to start programs would take longer than to turn.
TURNED_HEADS = 8


@dataclass(frozen=True)
class TritonElementwise:
    """`RowKernels` on a card."""

    def takes(self, x: Tensor) -> bool:
        return x.dim() == 2 and x.dtype in DTYPES and x.is_contiguous()

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        normalising(x, weight, y, eps)()
        return y

    def norm_of_sum(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        alpha: float,
        post_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        total, y = torch.empty_like(x), torch.empty_like(x)
        adding(x, added.contiguous(), weight, total, y, eps, alpha, post_weight)()
        return total, y

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        y = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        gating(gate_up, y, activation)()
        return y


@dataclass(frozen=True)
class TritonRotation:
    """`RotationKernel` on a card."""

    def takes(self, qkv: Tensor, cached: Tensor) -> bool:
        return qkv.dtype in DTYPES and are_turnable(qkv, cached)

    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cached: Tensor,
        cells: Tensor,
        norm: HeadNorm | None = None,
    ) -> None:
        turning(qkv, cos.contiguous(), sin.contiguous(), cached, cells, norm)()


def normalising(x: Tensor, weight: Tensor, y: Tensor, eps: float) -> Launch:
    """The kernel that writes y (T, C)."""
    return adding(x, x, weight, x, y, eps, 0.0, is_sum=False)


def adding(
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    total: Tensor,
    y: Tensor,
    eps: float,
    alpha: float,
    post_weight: Tensor | None = None,
    *,
    is_sum: bool = True,
) -> Launch:
    """The kernel that writes the sum, if there is one, and y (T, C)."""
    given: Given = {"x": x, "added": added, "weight": weight, "total": total, "y": y}
    given |= {"post_weight": weight if post_weight is None else post_weight}
    given |= {"columns": x.shape[1], "eps": eps, "share": alpha}
    columns = next_power_of_2(x.shape[1])
    constants = {"COLUMNS": columns, "IS_SUM": is_sum, "HAS_POST_NORM": post_weight is not None}
    num_warps = min(16, max(1, columns // 512))
    return Launch(normalise, (len(x),), given, constants, num_warps, num_stages=1)


def gating(gate_up: Tensor, y: Tensor, activation: str) -> Launch:
    """The kernel that writes y (T, F)."""
    num_programs = -(-y.shape[1] // GATE_COLUMNS)
    given: Given = {"gate_up": gate_up, "y": y, "columns": y.shape[1]}
    constants = {"COLUMNS": GATE_COLUMNS, "ACTIVATION": activation}
    return Launch(gate, (len(y), num_programs), given, constants, 4, num_stages=1)


def turning(
    qkv: Tensor, cos: Tensor, sin: Tensor, cached: Tensor, cells: Tensor, norm: HeadNorm | None = None
) -> Launch:
    """The kernel that turns queries where they lie, and keeps keys and values."""
    keys, values = cached  # (K, pages, PAGE_TOKENS, D) each
    T, num_heads, D = qkv.shape
    given: Given = {"qkv": qkv, "cos": cos, "sin": sin, "cells": cells, "keys": keys, "values": values}
    given |= {"norm": cos if norm is None else norm.weight, "eps": 0.0 if norm is None else norm.eps}
    given |= {"kv_head": keys.stride(0)}
    constants = {
        "HEADS": num_heads - 2 * len(keys),
        "KV_HEADS": len(keys),
        "HEAD_DIM": D,
        "HALF_PADDED": next_power_of_2(D // 2),
        "AT_ONCE": TURNED_HEADS,
        "HAS_NORM": norm is not None,
    }
    grid = (T, -(-num_heads // TURNED_HEADS))
    return Launch(turn_and_keep, grid, given, constants, 4, num_stages=1)
