"""Blocks that are taken apart are the same blocks; this needs no triton."""

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts


@pytest.mark.parametrize("type", sorted(PARTED_TYPES), ids=lambda type: type.name)
def test_parts_are_the_blocks_in_as_many_bytes(type: GGMLType) -> None:
    values, size = GGML_QUANT_SIZES[type]
    blocks = torch.randint(0, 256, (7, 3 * size), dtype=torch.uint8)
    parts = BlockParts.empty(type, 7, 3 * values, "cpu")
    parts.write(0, blocks[:2])
    parts.write(2, blocks[2:])
    assert parts.blocks().equal(blocks)
    assert parts.num_bytes == blocks.nbytes
    assert (parts.num_rows, parts.columns) == (7, 3 * values)


@pytest.mark.parametrize("type", sorted(PARTED_TYPES), ids=lambda type: type.name)
def test_rows_may_be_taken(type: GGMLType) -> None:
    values, size = GGML_QUANT_SIZES[type]
    blocks = torch.randint(0, 256, (7, 3 * size), dtype=torch.uint8)
    parts = BlockParts.empty(type, 7, 3 * values, "cpu")
    parts.write(0, blocks)
    assert parts.rows(slice(2, 5)).blocks().equal(blocks[2:5])
    ids = torch.tensor([6, 0, 0])
    assert parts.rows(ids).blocks().equal(blocks[ids])
