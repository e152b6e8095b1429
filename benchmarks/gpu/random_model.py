"""A Llama of random weights in a GGUF file, of any size: one tensor at a time is in memory.

Values are drawn and stored on the device, where that takes seconds.
"""

import math
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from benchmarks.random_blocks import HALVES, random_blocks
from benchmarks.stored_blocks import stored_blocks
from benchmarks.vocabularies import AddVocabulary, add_sentence_pieces
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ROPE_NAME, Shape, expected_shapes

BLOCK_VALUES = 32


def write_random_model(
    path: Path,
    config: LlamaConfig,
    type: GGMLType | Callable[[str], GGMLType],
    device: torch.device,
    add_vocabulary: AddVocabulary = add_sentence_pieces,
    *,
    is_tied: bool = False,
) -> Path:
    """Write matrices as `type`, or as it says by their names, and norms as F32; tied: without an output.

    Blocks are random bits where that is known to give such values. `path` is there only when all is written.
    """
    type_of = type if callable(type) else lambda name: type
    unfinished = path.with_suffix(".unfinished")
    writer, shapes = write_header(unfinished, config, type_of, add_vocabulary, is_tied=is_tied)
    for seed, (name, shape) in enumerate(shapes.items()):
        writer.write_tensor_data(_blocks(shape, stored_type(shape, type_of(name)), seed, device))
    writer.close()
    return unfinished.rename(path)


def write_header(
    path: Path,
    config: LlamaConfig,
    type_of: Callable[[str], GGMLType],
    add_vocabulary: AddVocabulary = add_sentence_pieces,
    *,
    is_tied: bool = False,
) -> tuple[gguf.GGUFWriter, dict[str, Shape]]:
    """All that stands before the values of a file, and the shapes of the values that are to come."""
    left_out = {ROPE_NAME, "output.weight"} if is_tied else {ROPE_NAME}
    shapes = {name: shape for name, shape in expected_shapes(config).items() if name not in left_out}
    writer = gguf.GGUFWriter(path, config.family.architecture)
    _add_config(writer, config)
    add_vocabulary(writer, config.vocab_size)
    for name, shape in shapes.items():
        stored = stored_type(shape, type_of(name))
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[stored]
        num_bytes = math.prod(shape) // block_values * block_bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer, shapes


def random_values(shape: Shape, seed: int, device: torch.device) -> Tensor:
    """Float32 values whose spread keeps activations about as large as they come in: (rows, columns)."""
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn(shape, generator=generator, device=device)
    return 1 + 0.1 * values if len(shape) == 1 else values / math.sqrt(shape[-1])


def q8_0_blocks(values: Tensor) -> Tensor:
    """Values (N, C) in blocks of 32, a float16 scale and signed bytes each: uint8 (N, C / 32 * 34)."""
    by_block = values.view(len(values), -1, BLOCK_VALUES)  # (N, b, 32)
    scales = by_block.abs().amax(dim=-1, keepdim=True) / 127  # (N, b, 1)
    quants = (by_block / scales).nan_to_num_().round_().to(torch.int8)
    return torch.cat((scales.half().view(torch.uint8), quants.view(torch.uint8)), dim=-1).flatten(-2)


#: Values to blocks of uint8, where they are.
BLOCKS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: lambda values: values.view(torch.uint8),
    GGMLType.F16: lambda values: values.half().view(torch.uint8),
    GGMLType.BF16: lambda values: values.bfloat16().view(torch.uint8),
    GGMLType.Q8_0: q8_0_blocks,
}


def _blocks(shape: Shape, type: GGMLType, seed: int, device: torch.device) -> np.ndarray:
    """Random ones; else drawn values, stored by the device if it can, or by the gguf package."""
    if type in HALVES:
        num_rows, columns = shape
        return random_blocks(type, num_rows, columns, seed, device).cpu().numpy()
    values = random_values(shape, seed, device)
    if type in BLOCKS:
        return BLOCKS[type](values).cpu().numpy()
    return stored_blocks(values.cpu().numpy(), type)


def stored_type(shape: Shape, type: GGMLType) -> GGMLType:
    """Vectors are stored as numbers."""
    return GGMLType.F32 if len(shape) == 1 else type


def _add_config(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    writer.add_name("random")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.rope_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.rms_eps)
