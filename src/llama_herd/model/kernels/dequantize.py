"""dequantize: the values that stand in GGUF blocks, in plain torch on any device.

Shapes: N rows, C values of a row, B blocks.
"""

from collections.abc import Callable

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels import blocks_of_32, grids, k_quants, tables, ternary


def dequantize(blocks: Tensor, type: GGMLType) -> Tensor:
    """Blocks of uint8 (N, bytes of a row) as float32 (N, C), bit-equal to gguf.quants.dequantize."""
    block_bytes = GGML_QUANT_SIZES[type][1]
    return _READERS[type](blocks.reshape(-1, block_bytes)).reshape(len(blocks), -1)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


#: Each reads uint8 (B, bytes of a block) as float32 (B, ...), the values of a block in order.
_READERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: blocks_of_32.q4_0,
    GGMLType.Q4_1: blocks_of_32.q4_1,
    GGMLType.Q5_0: blocks_of_32.q5_0,
    GGMLType.Q5_1: blocks_of_32.q5_1,
    GGMLType.Q8_0: blocks_of_32.q8_0,
    GGMLType.Q2_K: k_quants.q2_k,
    GGMLType.Q3_K: k_quants.q3_k,
    GGMLType.Q4_K: k_quants.q4_k,
    GGMLType.Q5_K: k_quants.q5_k,
    GGMLType.Q6_K: k_quants.q6_k,
    GGMLType.TQ1_0: ternary.tq1_0,
    GGMLType.TQ2_0: ternary.tq2_0,
    GGMLType.IQ1_S: grids.iq1_s,
    GGMLType.IQ1_M: grids.iq1_m,
    GGMLType.IQ2_XXS: grids.iq2_xxs,
    GGMLType.IQ2_XS: grids.iq2_xs,
    GGMLType.IQ2_S: grids.iq2_s,
    GGMLType.IQ3_XXS: grids.iq3_xxs,
    GGMLType.IQ3_S: grids.iq3_s,
    GGMLType.IQ4_NL: tables.iq4_nl,
    GGMLType.IQ4_XS: tables.iq4_xs,
    GGMLType.MXFP4: tables.mxfp4,
    GGMLType.NVFP4: tables.nvfp4,
}
