"""Device code: products with quantised weights, and their values, out of blocks that are taken apart.

A byte holds bits of one, two or more values that stand some columns apart. The values of all bytes at one
place in them are a plane. Each plane is multiplied by the inputs of its own columns, so nothing is ever
interleaved.
Tensor cores multiply values that are scaled in float32 and rounded to the inputs' type, as when they are
dequantised first. A single token is multiplied by the numbers themselves, and their sums are scaled.

Shapes: N rows, M tokens, B blocks of a row; a tile has ROWS rows and BLOCKS blocks of each. It is told by
these rows (ROWS,), the first of its blocks, and how many blocks a row has.
"""

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _part(pointer, tile, at, SIZE: constexpr, IS_EVEN: constexpr):
    """Numbers of rows that have SIZE in each block, those `at` from the beginning of a block: (ROWS, any)."""
    row, block, num_blocks = tile
    place = pointer + row[:, None] * (num_blocks * SIZE) + (block * SIZE + at)[None, :]
    if IS_EVEN:
        return tl.load(place)
    return tl.load(place, mask=(block + at // SIZE < num_blocks)[None, :], other=0)


@triton.jit
def _spread(scales, RUN: constexpr):
    """Each scale RUN times: (ROWS, any) to (ROWS, any * RUN)."""
    wide = tl.broadcast_to(scales[:, :, None], (scales.shape[0], scales.shape[1], RUN))
    return tl.reshape(wide, (scales.shape[0], scales.shape[1] * RUN))


@triton.constexpr_function
def _assembly(shift, high_shift):
    """PTX for four bytes at once: four bits of each from `shift` on, with two of other bytes above them.

    A byte in the middle of the bits of 128.0 is its fraction: one instruction, where a conversion takes two.
    """
    high = f"shr.b32 other, $5, {high_shift}; and.b32 other, other, 0x03030303; shl.b32 other, other, 4;"
    return f"""{{
        .reg .b32 word, other;
        shr.b32 word, $4, {shift};
        and.b32 word, word, 0x0f0f0f0f;
        {"" if high_shift is None else high + "or.b32 word, word, other;"}
        prmt.b32 $0, word, 0x43000000, 0x7044;
        prmt.b32 $1, word, 0x43000000, 0x7144;
        prmt.b32 $2, word, 0x43000000, 0x7244;
        prmt.b32 $3, word, 0x43000000, 0x7344;
    }}"""


@triton.jit
def _four_bits(packed, SHIFT: constexpr, BIAS: constexpr):
    """Four bits of each byte from SHIFT on, and BIAS: float32."""
    if BIAS:
        found = tl.inline_asm_elementwise(
            _assembly(SHIFT, None), "=r,=r,=r,=r,r", [packed], dtype=tl.int32, is_pure=True, pack=4
        )
        return found.to(tl.float32, bitcast=True)
    return (packed >> SHIFT & 15).to(tl.float32)


@triton.jit
def _six_bits(low, high, PLANE: constexpr, BIAS: constexpr):
    """Four bits of each low byte, two of each high one above them, and BIAS: float32."""
    if BIAS:
        found = tl.inline_asm_elementwise(
            _assembly(PLANE // 2 * 4, PLANE * 2),
            "=r,=r,=r,=r,r,r",
            [low, high],
            dtype=tl.int32,
            is_pure=True,
            pack=4,
        )
        return found.to(tl.float32, bitcast=True)
    return (low >> (PLANE // 2 * 4) & 15 | (high >> (PLANE * 2) & 3) << 4).to(tl.float32)


@triton.jit
def _q8_0_half(parts, tile, BLOCKS: constexpr, IS_EVEN: constexpr):
    values, _, _, halves = parts
    scale = _part(halves, tile, tl.arange(0, BLOCKS), 1, IS_EVEN).to(tl.float32)
    whole = _part(values, tile, tl.arange(0, BLOCKS * 32), 32, IS_EVEN).to(tl.float32)
    return whole, scale, scale  # it has no offset, and none is read


@triton.jit
def _q8_0(parts, tile, BLOCKS: constexpr, IS_EVEN: constexpr):
    row, block, num_blocks = tile
    first = _q8_0_half(parts, tile, BLOCKS // 2, IS_EVEN)
    return first, _q8_0_half(parts, (row, block + BLOCKS // 2, num_blocks), BLOCKS // 2, IS_EVEN)


@triton.jit
def _q4_0(parts, tile, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr):
    values, _, _, halves = parts
    scale = _part(halves, tile, tl.arange(0, BLOCKS), 1, IS_EVEN).to(tl.float32)
    packed = _part(values, tile, tl.arange(0, BLOCKS * 16), 16, IS_EVEN)
    low, high = _four_bits(packed, 0, BIAS), _four_bits(packed, 4, BIAS)
    return (low, scale, (8 + BIAS) * scale), (high, scale, (8 + BIAS) * scale)


@triton.jit
def _q4_k_group(parts, tile, PLANE: constexpr, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr):
    """Scales and offsets of groups 0, 2, 4, 6 of 32, or of the ones between: (ROWS, 4 a block) each."""
    _, _, scales, halves = parts
    at = tl.arange(0, BLOCKS * 4)
    group = 2 * (at % 4) + PLANE
    place = at // 4 * 12 + group % 4
    first = _part(scales, tile, place, 12, IS_EVEN)
    second = _part(scales, tile, place + 4, 12, IS_EVEN)
    third = _part(scales, tile, place + 8, 12, IS_EVEN)
    is_early = (group < 4)[None, :]
    fine = tl.where(is_early, first & 63, third & 15 | first >> 2 & 48).to(tl.float32)
    fine_minimum = tl.where(is_early, second & 63, third >> 4 | second >> 2 & 48).to(tl.float32)
    scale = fine * _part(halves, tile, at // 4 * 2, 2, IS_EVEN).to(tl.float32)
    coarse_minimum = _part(halves, tile, at // 4 * 2 + 1, 2, IS_EVEN).to(tl.float32)
    return scale, coarse_minimum * fine_minimum + BIAS * scale


@triton.jit
def _q4_k(parts, tile, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr):
    packed = _part(parts[0], tile, tl.arange(0, BLOCKS * 128), 128, IS_EVEN)
    low_scale, low_offset = _q4_k_group(parts, tile, 0, BLOCKS, IS_EVEN, BIAS)
    high_scale, high_offset = _q4_k_group(parts, tile, 1, BLOCKS, IS_EVEN, BIAS)
    low, high = _four_bits(packed, 0, BIAS), _four_bits(packed, 4, BIAS)
    return (low, low_scale, low_offset), (high, high_scale, high_offset)


@triton.jit
def _q6_k_plane(
    number, parts, tile, PLANE: constexpr, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr
):
    """Numbers 32 * PLANE and following of each 128; each 16 have a scale."""
    _, _, scales, halves = parts
    at = tl.arange(0, BLOCKS * 4)
    place = at // 4 * 16 + at // 2 % 2 * 8 + PLANE * 2 + at % 2
    fine = _part(scales, tile, place, 16, IS_EVEN).to(tl.float32)
    scale = fine * _part(halves, tile, at // 4, 1, IS_EVEN).to(tl.float32)
    return number, scale, (32 + BIAS) * scale


@triton.jit
def _q6_k(parts, tile, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr):
    values, high, _, _ = parts
    at = tl.arange(0, BLOCKS * 64)
    first = _part(values, tile, at // 32 * 64 + at % 32, 128, IS_EVEN)  # low bits
    second = _part(values, tile, at // 32 * 64 + 32 + at % 32, 128, IS_EVEN)
    bits = _part(high, tile, at, 64, IS_EVEN)
    return (
        _q6_k_plane(_six_bits(first, bits, 0, BIAS), parts, tile, 0, BLOCKS, IS_EVEN, BIAS),
        _q6_k_plane(_six_bits(second, bits, 1, BIAS), parts, tile, 1, BLOCKS, IS_EVEN, BIAS),
        _q6_k_plane(_six_bits(first, bits, 2, BIAS), parts, tile, 2, BLOCKS, IS_EVEN, BIAS),
        _q6_k_plane(_six_bits(second, bits, 3, BIAS), parts, tile, 3, BLOCKS, IS_EVEN, BIAS),
    )


@triton.jit
def _planes(parts, tile, TYPE: constexpr, BLOCKS: constexpr, IS_EVEN: constexpr, BIAS: constexpr):
    """The planes of a tile: numbers (ROWS, values of a plane), and scales and offsets of their groups.

    A value is its number times its group's scale, minus the group's offset; Q8_0 has no offsets.
    """
    if TYPE == "Q8_0":
        planes = _q8_0(parts, tile, BLOCKS, IS_EVEN)
    elif TYPE == "Q4_0":
        planes = _q4_0(parts, tile, BLOCKS, IS_EVEN, BIAS)
    elif TYPE == "Q4_K":
        planes = _q4_k(parts, tile, BLOCKS, IS_EVEN, BIAS)
    else:
        planes = _q6_k(parts, tile, BLOCKS, IS_EVEN, BIAS)
    return planes  # once: the compiler wants one type of what a function returns


@triton.jit
def _values(plane, TYPE: constexpr, GROUP: constexpr):
    """The values of a plane: float32 (ROWS, any)."""
    number, scale, offset = plane
    if TYPE == "Q8_0":
        return number * _spread(scale, GROUP)
    return number * _spread(scale, GROUP) - _spread(offset, GROUP)


@triton.jit
def _dotted(plane, inputs, TYPE: constexpr, GROUP: constexpr):
    """What each 16 values of a plane add to its row's product with inputs (values of a plane): (ROWS, any).

    A thread loads 16 bytes, so none waits for another to add them.
    """
    number, scale, offset = plane
    sums = tl.sum(_sixteens(number * inputs[None, :]), axis=2) * _spread(scale, GROUP // 16)
    if TYPE == "Q8_0":
        return sums
    return sums - _spread(offset, GROUP // 16) * tl.sum(_sixteens(inputs[None, :]), axis=2)


@triton.jit
def _sixteens(numbers):
    return tl.reshape(numbers, (numbers.shape[0], numbers.shape[1] // 16, 16))


@triton.jit
def _columns(PLANE: constexpr, PLANES: constexpr, RUN: constexpr, COLUMNS: constexpr):
    """The columns of a tile in which the values of a plane stand."""
    at = tl.arange(0, COLUMNS // PLANES)
    return at // RUN * (RUN * PLANES) + PLANE * RUN + at % RUN


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "part_blocks"])
def multiply(
    x,  # (M, columns)
    y,  # (parts, M, N)
    values,
    high,
    scales,
    halves,
    num_rows,
    num_tokens,
    num_blocks,
    part_blocks,  # blocks of a row that a part multiplies, whole tiles
    TYPE: constexpr,
    BLOCK_VALUES: constexpr,
    PLANES: constexpr,
    RUN: constexpr,  # neighbours in a plane that are neighbours in the matrix
    GROUP: constexpr,  # neighbours in a plane that share a scale
    ROWS: constexpr,
    TOKENS: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,  # whether a row is whole tiles
    BIAS: constexpr,
):
    """y = x @ W.T of some rows and all tokens, over a part of the columns.

    Rows beyond the last are computed as the last, and not kept. The weights are the left operand: so no two
    warps unpack the same ones.
    """
    row, token = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TOKENS)
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    own_token = token.to(tl.int64)[:, None]
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    first = tl.program_id(1) * part_blocks
    for block in tl.range(first, tl.minimum(first + part_blocks, num_blocks), BLOCKS):
        tile = (own_row, block, num_blocks)
        planes = _planes((values, high, scales, halves), tile, TYPE, BLOCKS, IS_EVEN, BIAS)
        for plane in tl.static_range(PLANES):
            column = block * BLOCK_VALUES + _columns(plane, PLANES, RUN, BLOCKS * BLOCK_VALUES)
            place = x + own_token * (num_blocks * BLOCK_VALUES) + column[None, :]
            is_there = IS_EVEN | (column < num_blocks * BLOCK_VALUES)
            inputs = tl.load(place, mask=(token < num_tokens)[:, None] & is_there[None, :], other=0.0)
            weights = _values(planes[plane], TYPE, GROUP).to(inputs.dtype)
            sums = tl.dot(weights, tl.trans(inputs), sums)
    place = y + (tl.program_id(1) * num_tokens + token[:, None]).to(tl.int64) * num_rows + row[None, :]
    is_there = (token < num_tokens)[:, None] & (row < num_rows)[None, :]
    tl.store(place, tl.trans(sums).to(y.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["num_rows"])
def multiply_one(
    x,  # (columns)
    y,  # (N)
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
    GROUP: constexpr,
    ROWS: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,
    BIAS: constexpr,
):
    """y = x @ W.T of some rows and one token, without tensor cores, which have nothing to do for one."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    sums = tl.zeros([ROWS, BLOCKS * BLOCK_VALUES // PLANES // 16], tl.float32)
    for block in tl.range(0, num_blocks, BLOCKS):
        tile = (own_row, block, num_blocks)
        planes = _planes((values, high, scales, halves), tile, TYPE, BLOCKS, IS_EVEN, BIAS)
        for plane in tl.static_range(PLANES):
            column = block * BLOCK_VALUES + _columns(plane, PLANES, RUN, BLOCKS * BLOCK_VALUES)
            is_there = IS_EVEN | (column < num_blocks * BLOCK_VALUES)
            inputs = tl.load(x + column, mask=is_there, other=0.0).to(tl.float32)
            sums += _dotted(planes[plane], inputs, TYPE, GROUP)
    tl.store(y + row, tl.sum(sums, axis=1).to(y.dtype.element_ty), mask=row < num_rows)


@triton.jit(do_not_specialize=["num_parts", "num_numbers"])
def add_parts(parts, y, num_parts, num_numbers, NUMBERS: constexpr):
    """y (num_numbers) = the sum of parts (num_parts, num_numbers), in order."""
    at = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    is_there = at < num_numbers
    place, total = parts + at, tl.zeros([NUMBERS], tl.float32)
    for _ in tl.range(0, num_parts):
        total += tl.load(place, mask=is_there)
        place += num_numbers
    tl.store(y + at, total.to(y.dtype.element_ty), mask=is_there)


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
    GROUP: constexpr,
    ROWS: constexpr,
    BLOCKS: constexpr,
    IS_EVEN: constexpr,
):
    """Write the values of one tile."""
    row, block = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * BLOCKS
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    tile = (own_row, block, num_blocks)
    planes = _planes((values, high, scales, halves), tile, TYPE, BLOCKS, IS_EVEN, 0)
    for plane in tl.static_range(PLANES):
        column = block * BLOCK_VALUES + _columns(plane, PLANES, RUN, BLOCKS * BLOCK_VALUES)
        is_there = (row < num_rows)[:, None] & (column < num_blocks * BLOCK_VALUES)[None, :]
        place = own_row[:, None] * (num_blocks * BLOCK_VALUES) + column[None, :]
        tl.store(y + place, _values(planes[plane], TYPE, GROUP).to(y.dtype.element_ty), mask=is_there)
