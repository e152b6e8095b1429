"""Device code: products with quantised weights, and their values, out of blocks that are taken apart.

A byte holds bits of one, two or more values that stand some columns apart. The values of all bytes at one
place in them are a plane. Each plane is multiplied by the inputs of its own columns, so nothing is ever
interleaved.
Values are scaled in float32 and rounded to the inputs' type, as when they are dequantised first.

Shapes: N rows, M tokens, B blocks of a row; a tile has ROWS rows and BLOCKS blocks of each.
"""

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _part(pointer, row, block, num_blocks, at, SIZE: constexpr, IS_EVEN: constexpr = True):
    """Numbers of rows that have SIZE in each block, those `at` from the beginning of a block: (ROWS, any)."""
    place = pointer + row[:, None] * (num_blocks * SIZE) + (block * SIZE + at)[None, :]
    if IS_EVEN:
        return tl.load(place)
    return tl.load(place, mask=(block + at // SIZE < num_blocks)[None, :], other=0)


@triton.jit
def _spread(scales, RUN: constexpr):
    """Each scale RUN times: (ROWS, any) to (ROWS, any * RUN)."""
    wide = tl.broadcast_to(scales[:, :, None], (scales.shape[0], scales.shape[1], RUN))
    return tl.reshape(wide, (scales.shape[0], scales.shape[1] * RUN))


@triton.jit
def _q8_0_half(values, halves, row, block, num_blocks, BLOCKS: constexpr, IS_EVEN: constexpr):
    scale = _part(halves, row, block, num_blocks, tl.arange(0, BLOCKS), 1, IS_EVEN).to(tl.float32)
    whole = _part(values, row, block, num_blocks, tl.arange(0, BLOCKS * 32), 32, IS_EVEN).to(tl.float32)
    return whole * _spread(scale, 32)


@triton.jit
def _q8_0(values, halves, row, block, num_blocks, BLOCKS: constexpr, IS_EVEN: constexpr):
    first = _q8_0_half(values, halves, row, block, num_blocks, BLOCKS // 2, IS_EVEN)
    return first, _q8_0_half(values, halves, row, block + BLOCKS // 2, num_blocks, BLOCKS // 2, IS_EVEN)


@triton.jit
def _q4_0(values, halves, row, block, num_blocks, BLOCKS: constexpr, IS_EVEN: constexpr):
    coarse = _part(halves, row, block, num_blocks, tl.arange(0, BLOCKS), 1, IS_EVEN)
    scale = _spread(coarse.to(tl.float32), 16)
    packed = _part(values, row, block, num_blocks, tl.arange(0, BLOCKS * 16), 16, IS_EVEN)
    low, high = (packed & 15).to(tl.float32), (packed >> 4).to(tl.float32)
    return (low - 8) * scale, (high - 8) * scale


@triton.jit
def _q4_k_group(halves, scales, row, block, num_blocks, PLANE: constexpr):
    """Scales and minima of every other group of 32: 0, 2, 4, 6, or the ones between. (ROWS, 4) each."""
    group = 2 * tl.arange(0, 4) + PLANE
    place = row[:, None] * (num_blocks * 12) + (block * 12 + group % 4)[None, :]
    first, second, third = (
        tl.load(scales + place),
        tl.load(scales + place + 4),
        tl.load(scales + place + 8),
    )
    is_early = (group < 4)[None, :]
    scale = tl.where(is_early, first & 63, third & 15 | first >> 2 & 48).to(tl.float32)
    minimum = tl.where(is_early, second & 63, third >> 4 | second >> 2 & 48).to(tl.float32)
    coarse = halves + row * (num_blocks * 2) + block * 2
    coarse_scale, coarse_minimum = tl.load(coarse).to(tl.float32), tl.load(coarse + 1).to(tl.float32)
    return coarse_scale[:, None] * scale, coarse_minimum[:, None] * minimum


@triton.jit
def _q4_k(values, scales, halves, row, block, num_blocks):
    packed = _part(values, row, block, num_blocks, tl.arange(0, 128), 128)
    low_scale, low_minimum = _q4_k_group(halves, scales, row, block, num_blocks, 0)
    high_scale, high_minimum = _q4_k_group(halves, scales, row, block, num_blocks, 1)
    low, high = (packed & 15).to(tl.float32), (packed >> 4).to(tl.float32)
    return (
        low * _spread(low_scale, 32) - _spread(low_minimum, 32),
        high * _spread(high_scale, 32) - _spread(high_minimum, 32),
    )


@triton.jit
def _q6_k_plane(low, high, scales, coarse, row, block, num_blocks, PLANE: constexpr):
    """Values 32 * PLANE and following of each 128; each 16 have a scale."""
    whole = (low >> (PLANE // 2 * 4) & 15 | (high >> (PLANE * 2) & 3) << 4).to(tl.float32) - 32
    at = tl.arange(0, 4)
    fine = _part(scales, row, block, num_blocks, at // 2 * 8 + PLANE * 2 + at % 2, 16)
    return whole * _spread(coarse[:, None] * fine.to(tl.float32), 16)


@triton.jit
def _q6_k(values, high, scales, halves, row, block, num_blocks):
    at = tl.arange(0, 64)
    first = _part(values, row, block, num_blocks, at // 32 * 64 + at % 32, 128)  # low bits
    second = _part(values, row, block, num_blocks, at // 32 * 64 + 32 + at % 32, 128)
    bits = _part(high, row, block, num_blocks, at, 64)
    coarse = tl.load(halves + row * num_blocks + block).to(tl.float32)
    return (
        _q6_k_plane(first, bits, scales, coarse, row, block, num_blocks, 0),
        _q6_k_plane(second, bits, scales, coarse, row, block, num_blocks, 1),
        _q6_k_plane(first, bits, scales, coarse, row, block, num_blocks, 2),
        _q6_k_plane(second, bits, scales, coarse, row, block, num_blocks, 3),
    )


@triton.jit
def _planes(
    values,
    high,
    scales,
    halves,
    row,
    block,
    num_blocks,
    TYPE: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,
):
    """The planes of a tile, float32 (ROWS, values of a plane) each."""
    if TYPE == "Q8_0":
        planes = _q8_0(values, halves, row, block, num_blocks, BLOCKS, IS_EVEN)
    elif TYPE == "Q4_0":
        planes = _q4_0(values, halves, row, block, num_blocks, BLOCKS, IS_EVEN)
    elif TYPE == "Q4_K":
        planes = _q4_k(values, scales, halves, row, block, num_blocks)
    else:
        planes = _q6_k(values, high, scales, halves, row, block, num_blocks)
    return planes  # once: the compiler wants one type of what a function returns


@triton.jit
def _columns(PLANE: constexpr, PLANES: constexpr, RUN: constexpr, COLUMNS: constexpr):
    """The columns of a tile in which the values of a plane stand."""
    at = tl.arange(0, COLUMNS // PLANES)
    return at // RUN * (RUN * PLANES) + PLANE * RUN + at % RUN


@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def multiply(
    x,  # (M, columns)
    y,  # (M, N)
    values,
    high,
    scales,
    halves,
    num_rows,
    num_tokens,
    num_blocks,
    TYPE: constexpr,
    BLOCK_VALUES: constexpr,
    PLANES: constexpr,
    RUN: constexpr,  # neighbours in a plane that are neighbours in the matrix
    ROWS: constexpr,
    TOKENS: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,  # whether a row is whole tiles
):
    """y = x @ W.T of some rows and tokens. Those beyond the last are computed as the last, and not kept.

    The weights are the left operand: so no two warps unpack the same ones.
    """
    row, token = (
        tl.program_id(0) * ROWS + tl.arange(0, ROWS),
        tl.program_id(1) * TOKENS + tl.arange(0, TOKENS),
    )
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    own_token = tl.minimum(token, num_tokens - 1).to(tl.int64)[:, None]
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    for block in tl.range(0, num_blocks, BLOCKS):
        planes = _planes(values, high, scales, halves, own_row, block, num_blocks, TYPE, BLOCKS, IS_EVEN)
        for plane in tl.static_range(PLANES):
            column = block * BLOCK_VALUES + _columns(plane, PLANES, RUN, BLOCKS * BLOCK_VALUES)
            place = x + own_token * (num_blocks * BLOCK_VALUES) + column[None, :]
            if IS_EVEN:
                inputs = tl.load(place)
            else:
                inputs = tl.load(place, mask=(column < num_blocks * BLOCK_VALUES)[None, :], other=0.0)
            sums = tl.dot(planes[plane].to(inputs.dtype), tl.trans(inputs), sums)
    place = y + token[:, None].to(tl.int64) * num_rows + row[None, :]
    is_there = (token < num_tokens)[:, None] & (row < num_rows)[None, :]
    tl.store(place, tl.trans(sums).to(y.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["num_rows"])
def dequantise(
    y,  # (N, columns)
    values,
    high,
    scales,
    halves,
    num_rows,
    num_blocks,
    TYPE: constexpr,
    BLOCK_VALUES: constexpr,
    PLANES: constexpr,
    RUN: constexpr,
    ROWS: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,
):
    """Write the values of one tile."""
    row, block = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * BLOCKS
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    planes = _planes(values, high, scales, halves, own_row, block, num_blocks, TYPE, BLOCKS, IS_EVEN)
    for plane in tl.static_range(PLANES):
        column = block * BLOCK_VALUES + _columns(plane, PLANES, RUN, BLOCKS * BLOCK_VALUES)
        is_there = (row < num_rows)[:, None] & (column < num_blocks * BLOCK_VALUES)[None, :]
        place = own_row[:, None] * (num_blocks * BLOCK_VALUES) + column[None, :]
        tl.store(y + place, planes[plane].to(y.dtype.element_ty), mask=is_there)
