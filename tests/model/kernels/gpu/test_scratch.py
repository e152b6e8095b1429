"""A matrix that goes through the scratch: slab by slab, one at a time, all by the same compiled kernel."""

import weakref

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts

#: What Triton compiles another kernel for when a pointer is no multiple of it.
ALIGNMENT = 16


@pytest.mark.parametrize("columns", [4096, 5120, 11008, 13824])
@pytest.mark.parametrize("type", sorted(PARTED_TYPES), ids=lambda type: type.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_slab_begins_as_the_first_one_does(
    device: torch.device, type: GGMLType, columns: int, dtype: torch.dtype
) -> None:
    """Else the kernel would be compiled once more in the middle of a step."""
    from llama_herd.model.kernels.gpu.products import slab_rows

    columns -= columns % GGML_QUANT_SIZES[type][0]
    num_rows = slab_rows(columns, dtype)
    parts = BlockParts.empty(type, 2 * num_rows, columns, "meta").rows(slice(num_rows, None)).parts
    begins = {name: part.storage_offset() * part.itemsize for name, part in parts.items()}
    assert {name: begin % ALIGNMENT for name, begin in begins.items()} == dict.fromkeys(parts, 0)


def test_no_slab_is_made_while_another_one_is_there(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_herd.model.kernels.gpu import products
    from llama_herd.model.kernels.gpu.triton_kernels import random_parts

    parts, values = random_parts(GGMLType.Q8_0, 70, 64, device), products.values
    monkeypatch.setattr(products, "SCRATCH_BYTES", 32 * 64 * torch.float16.itemsize)
    made: list[weakref.ref[Tensor]] = []

    def noted(parts: BlockParts, dtype: torch.dtype) -> Tensor:
        assert not any(slab() is not None for slab in made)
        slab = values(parts, dtype)
        made.append(weakref.ref(slab))
        return slab

    monkeypatch.setattr(products, "values", noted)
    products.product(torch.randn(65, 64, device=device).half(), parts)
    assert len(made) == 3
