"""A whole model that Triton's kernels compute says what its numbers say, from pages that lie anywhere."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import Pages
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import TritonSegment
from tests.closeness import assert_close
from tests.model.forwards import random_ids
from tests.tiny import WIDE, write_tiny_gguf


def refuse(*_: object) -> None:
    raise AssertionError("pages were gathered")


def logits(llama: Llama, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of two sequences that decode beside the prompt of a third, then one alone; a kernel copies no page."""
    cache = Cache(llama.config, 12, device, dtype)
    cache.pages = Pages(12, consecutive=False)
    pages = [(7, 2), (5, 0, 3), (1,)]
    texts = [random_ids(70, 1), random_ids(140, 2), random_ids(9, 3)]
    starts = [Chunk(pages[0], 0, texts[0][:66], 1), Chunk(pages[1], 0, texts[1][:137], 1)]
    found = [llama.forward(Batch.from_chunks(starts, device), cache)]
    chunks = [
        Chunk(pages[0], 66, texts[0][66:67], 1),
        Chunk(pages[1], 137, texts[1][137:140], 3),
        Chunk(pages[2], 0, texts[2], 1),
    ]
    found.append(llama.forward(Batch.from_chunks(chunks, device), cache))
    with pytest.MonkeyPatch.context() as patch:
        if llama.blocks[0].attention.native is not None:
            patch.setattr(cache, "gather", refuse)
        found.append(
            llama.forward(Batch.from_chunks([Chunk(pages[0], 67, texts[0][67:68], 1)], device), cache)
        )
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("types", ["Q8_0", "Q4_K Q6_K", "Q4_0 F16 Q6_K Q5_1"])
def test_it_says_what_its_numbers_say(
    device: torch.device, tmp_path: Path, types: str, dtype: torch.dtype
) -> None:
    from llama_herd.model.kernels.gpu.attention import TritonAttention
    from llama_herd.model.kernels.gpu.rows import TritonElementwise, TritonRotation
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels

    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=types, **WIDE)
    kernels = TritonKernels(
        *("", PARTED_TYPES, TritonAttention(132), device.type),
        elementwise=TritonElementwise(),
        rotation=TritonRotation(),
    )
    form = WeightForm.FASTEST.with_kernels(kernels)
    with GGUFModel.open(path) as file:
        exact = logits(Llama.load(file, device), torch.float32, device)
        fused = Llama.load(file, device, dtype, form=form)
        dense = logits(Llama.load(file, device, dtype), dtype, device)
        sizes = {
            info.name: form.num_bytes(info.type, info.shape, device.type, dtype.itemsize)
            for info in file.tensors
        }
    segments = fused.blocks[0].attention.output.segments
    assert isinstance(segments[0], TritonSegment) is ("F16" not in types)
    assert isinstance(fused.embedding, TritonSegment)
    assert fused.embedding.parts.num_bytes == sizes["token_embd.weight"]
    found = logits(fused, dtype, device)
    if dtype is torch.float32:
        assert_close(found, exact, atol=5e-5, rtol=0)
    assert (found - exact).norm() <= 1.5 * (dense - exact).norm() + 1e-3
