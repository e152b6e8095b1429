"""Blocks of every type: quantised by the gguf package, or random where it can only read them."""

from functools import cache

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.random_blocks import HALVES

#: Where the float16 numbers of a block stand.
SCALES_AT: dict[GGMLType, tuple[int, ...]] = {
    **{type: tuple(halves) for type, halves in HALVES.items()},
    GGMLType.IQ1_S: (0,),
    GGMLType.IQ2_XXS: (0,),
    GGMLType.IQ2_XS: (0,),
    GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,),
    GGMLType.IQ3_S: (0,),
    GGMLType.MXFP4: (),
}

#: Values that gguf is given as one row: it takes few rows at a time, which costs more than their values.
_SMALL = 1 << 17


def stored_blocks(values: np.ndarray, type: GGMLType) -> np.ndarray:
    """Rows of blocks of uint8: of these values, or random ones whose values are about as large."""
    rows = values.reshape(1, -1) if values.ndim == 2 and values.size <= _SMALL else values
    try:
        blocks = np.asarray(gguf.quants.quantize(rows, type).view(np.uint8))
    except NotImplementedError:
        return _random_blocks(values, type)
    return blocks if rows is values else blocks.reshape(len(values), -1)


def _random_blocks(values: np.ndarray, type: GGMLType) -> np.ndarray:
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[type]
    rng = np.random.default_rng(len(values))
    shape = (len(values), values.shape[1] // block_values, block_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    _set_scales(blocks, type, float(values.std() / _unscaled_size(type)))
    return blocks.reshape(len(values), -1)


@cache
def _unscaled_size(type: GGMLType) -> float:
    """Of the values of random blocks whose scales are 1, the root mean square."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[type]
    blocks = np.random.default_rng(0).integers(0, 256, (256, block_bytes), dtype=np.uint8)
    _set_scales(blocks, type, 1.0)
    return float(np.sqrt(np.square(gguf.quants.dequantize(blocks, type)).mean()))


def _set_scales(blocks: np.ndarray, type: GGMLType, scale: float) -> None:
    raw = int(np.float16(scale).view(np.uint16))
    if type is GGMLType.IQ1_M:  # a nibble in front of each of its last four words
        for i in range(4):
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | (raw >> 4 * i & 15) << 4
    elif type is GGMLType.NVFP4:
        blocks[..., :4] = blocks[..., :4] & 7 | 0x10  # 2**-6 to 2**-5
    else:
        for start in SCALES_AT[type]:
            blocks[..., start], blocks[..., start + 1] = raw & 255, raw >> 8
