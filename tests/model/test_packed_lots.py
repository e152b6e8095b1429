"""Prompts whose cached prefixes are long together are packed in lots: what is gathered at once is bounded."""

import pytest
import torch
from torch import Tensor

from llama_herd.model import batch as batches
from llama_herd.model.attend import attend
from llama_herd.model.attention_inputs import Packed, Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.sizes import attend_bytes
from llama_herd.model.tiling import GROUP_KEYS
from tests.model.plain_kernels import PlainPacked, PlainShort
from tests.tiny import tiny_config

H, D = 4, 16


def chunks_of(lengths: list[tuple[int, int]]) -> list[Chunk]:
    """Of so many tokens after so many that are cached."""
    chunks, first = [], 0
    for past, num_tokens in lengths:
        pages = tuple(range(first, first := first + pages_for(past + num_tokens)))
        chunks.append(Chunk(pages, past, range(num_tokens), 1))
    return chunks


def gathered_bytes(packed: Packed, cached: Tensor) -> int:
    return sum(part.nbytes for part in packed.keys_and_values(cached))


def test_no_lot_gathers_more_than_the_memory_plan_counts() -> None:
    """Ten tokens each after 4,000: few to compute, and a hundred times as many to read."""
    batch = Batch.from_chunks(chunks_of([(4000, 10)] * 64))
    config = tiny_config(num_heads=H, num_kv_heads=H, head_dim=D, context_length=4096)
    cached = torch.empty(2, H, 64 * pages_for(4010), PAGE_TOKENS, D)
    planned = attend_bytes(config, cached.itemsize, 4096, consecutive=False, is_packed=True)
    assert max(gathered_bytes(packed, cached) for packed in batch.packed) <= planned
    assert sum(len(packed.rows) for packed in batch.packed) == len(batch.ids)


def test_one_long_prompt_is_one_lot() -> None:
    batch = Batch.from_chunks(chunks_of([(GROUP_KEYS, 100), (0, 9)]))
    assert [packed.max_keys for packed in batch.packed] == [GROUP_KEYS + 100, 9]


def test_in_lots_prompts_attend_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [(0, 70), (130, 40), (64, 64), (5, 1), (200, 30)]
    chunks = chunks_of(lengths)
    cache = Cache(tiny_config(), 64, max_length=2048, consecutive=False)
    cache.storage.normal_(generator=torch.Generator().manual_seed(1))
    batch = Batch.from_chunks(chunks)
    q = torch.randn(len(batch.ids), H, D, generator=torch.Generator().manual_seed(2))
    exact = attend(q, cache, 1, batch, Scoring(), PlainShort(), PlainPacked())
    monkeypatch.setattr(batches, "GROUP_KEYS", 200)
    prompts = PlainPacked()
    found = attend(q, cache, 1, Batch.from_chunks(chunks), Scoring(), PlainShort(), prompts)
    assert [len(packed.query_ends) - 1 for packed in prompts.given] == [1, 1, 1, 1]
    assert torch.allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_is_gathered_is_the_cache_bit_for_bit(dtype: torch.dtype) -> None:
    """Of a layer of a cache whose pages lie anywhere."""
    (packed,) = Batch.from_chunks(chunks_of([(100, 30), (0, 70)])).packed
    shape = (2, 3, H, 5, PAGE_TOKENS, D * dtype.itemsize)
    cached = torch.randint(256, shape, dtype=torch.uint8).view(dtype)[:, 1]
    keys, values = packed.keys_and_values(cached)
    for found, given in zip((keys, values), cached.flatten(2, 3), strict=True):
        exact = given[:, packed.key_cells].transpose(0, 1)
        assert found.shape == (200, H, D)
        assert found.contiguous().view(torch.uint8).equal(exact.contiguous().view(torch.uint8))
        assert found.stride(-1) == 1
