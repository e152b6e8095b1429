"""Triton's attention reads the pages of a step where the device's own table of slots names them."""

from dataclasses import replace
from pathlib import Path

import torch

from llama_herd.model.batch import Batch, Chunk, DecodeBatch
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from tests.model.forwards import random_ids
from tests.tiny import write_tiny_gguf


def test_rows_told_by_the_device_give_the_logits_of_rows_told_by_the_host(
    device: torch.device, tmp_path: Path
) -> None:
    from llama_herd.model.kernels.gpu.attention import TritonAttention

    with GGUFModel.open(write_tiny_gguf(tmp_path / "tiny.gguf")) as file:
        llama = Llama.load(file, device)
    blocks = [
        replace(block, attention=replace(block.attention, native=TritonAttention(132)))
        for block in llama.blocks
    ]
    llama = replace(llama, blocks=tuple(blocks))
    cache = Cache(llama.config, 8, device, consecutive=False)
    pages, lengths = [(7, 2), (5, 0, 3)], (70, 131)
    texts = [random_ids(length + 1, length) for length in lengths]
    starts = [Chunk(own, 0, text[:-1], 0) for own, text in zip(pages, texts, strict=True)]
    llama.forward(Batch.from_chunks(starts, device), cache)
    last = [Chunk(own, length, text[-1:], 1) for own, length, text in zip(pages, lengths, texts, strict=True)]
    expected = llama.forward(Batch.from_chunks(last, device), cache)
    words = torch.full((3, 9), 8, device=device)  # what stands before a page table is something else
    words[2, 5:7], words[0, 5:8] = torch.tensor(pages[0]), torch.tensor(pages[1])
    slots = torch.tensor([2, 0], device=device)
    found = llama.forward(
        DecodeBatch(
            ids=torch.tensor([text[-1] for text in texts], device=device),
            positions=torch.tensor(lengths, device=device),
            cells=torch.tensor([chunk.cell(chunk.start) for chunk in last], device=device),
            slots=slots,
            tables=slots * 9 + 5,
            pages=words.view(-1),
            page_table=words[:, 5:8],
        ),
        cache,
    )
    assert torch.allclose(found, expected, atol=1e-5)
