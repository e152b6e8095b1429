"""Device code: what is done to each row by itself between two products, each in one pass over it.

All of it in float32; each result is rounded once.
"""

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def normalise(x, added, weight, total, y, columns, eps, share, COLUMNS: constexpr, IS_SUM: constexpr):
    """One row: y = total / sqrt(mean(total^2) + eps) * weight; total is x + share * added, rounded, or x."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    mask = column < columns
    wide = tl.load(x + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    if IS_SUM:
        wide += share * tl.load(added + row * columns + column, mask=mask, other=0.0).to(tl.float32)
        rounded = wide.to(total.dtype.element_ty)
        tl.store(total + row * columns + column, rounded, mask=mask)
        wide = rounded.to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(wide * wide, 0) / columns + eps)
    found = wide * scale * tl.load(weight + column, mask=mask, other=0.0)
    tl.store(y + row * columns + column, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gate(gate_up, y, columns, COLUMNS: constexpr):
    """Some columns of a row: silu(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    own = gate_up + row * (2 * columns) + column
    gates = tl.load(own, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(own + columns, mask=mask, other=0.0).to(tl.float32)
    found = gates / (1 + tl.exp(-gates)) * up
    tl.store(y + row * columns + column, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def turn_and_keep(
    qkv,  # (T, H + K + K, D)
    cos,  # (T, D) float32
    sin,
    cells,  # (T,) int64
    keys,  # (K, cells, D), the heads `kv_head` numbers apart
    values,
    kv_head,
    HEADS: constexpr,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    HALF_PADDED: constexpr,
    AT_ONCE: constexpr,  # heads of a program
):
    """Some heads of one token: queries are turned where they lie, keys into the cache; values are copied."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)[:, None]
    number = tl.arange(0, HALF_PADDED)[None, :]
    half: constexpr = HEAD_DIM // 2
    mask = (number < half) & (head < HEADS + 2 * KV_HEADS)
    own = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + number
    first, second = tl.load(own, mask=mask), tl.load(own + half, mask=mask)
    low, high, in_half = first.to(tl.float32), second.to(tl.float32), number < half
    cos += token * HEAD_DIM + number
    sin += token * HEAD_DIM + number
    turned = low * tl.load(cos, mask=in_half) + high * tl.load(sin, mask=in_half)
    swapped = high * tl.load(cos + half, mask=in_half) + low * tl.load(sin + half, mask=in_half)
    turned, swapped = turned.to(first.dtype), swapped.to(first.dtype)
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
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
