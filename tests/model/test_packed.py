"""Prompts that attend packed attend as the formula says, whatever is cached before them."""

import random

import pytest
import torch

from llama_herd.model.attend import attend
from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.gpu.plain import attend_packed_plainly, packed_of
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.tiling import SPAN_TOKENS
from tests.model.plain_kernels import PlainPacked, PlainShort
from tests.tiny import tiny_config

H, K, D = 4, 2, 16


def scattered(lengths: list[tuple[int, int]], seed: int) -> list[Chunk]:
    """Chunks of so many tokens after so many others, their pages in any order."""
    pages = list(range(64))
    random.Random(seed).shuffle(pages)
    chunks = []
    for past, num_tokens in lengths:
        num_pages = pages_for(past + num_tokens)
        own, pages = pages[:num_pages], pages[num_pages:]
        chunks.append(Chunk(tuple(own), past, range(num_tokens), 1))
    return chunks


def filled(chunks: list[Chunk]) -> Cache:
    """A cache of NaN but for the tokens of the chunks and those before them."""
    cache = Cache(tiny_config(), 64, max_length=2048, consecutive=False)
    cache.storage.fill_(torch.nan)
    generator = torch.Generator().manual_seed(1)
    for chunk in chunks:
        for position in range(chunk.stop):
            page, place = chunk.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
            cache.storage[:, :, :, page, place] = torch.randn(2, 2, K, D, generator=generator)
    return cache


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize(
    "lengths",
    [
        [(0, 70)],
        [(0, 64), (0, 128)],
        [(0, 5), (130, 40), (64, 64), (63, 66)],
        [(10, 1), (0, 90), (200, 1), (7, 30), (99, 3)],
        [(64, SPAN_TOKENS + 70), (0, 9), (0, 2 * SPAN_TOKENS)],
        [(64, 1), (3, 2)],
    ],
)
def test_prompts_of_any_lengths_attend_as_the_formula_says(
    lengths: list[tuple[int, int]], window: int
) -> None:
    chunks = scattered(lengths, len(lengths))
    cache, batch = filled(chunks), Batch.from_chunks(chunks)
    q = torch.randn(len(batch.ids), H, D, generator=torch.Generator().manual_seed(2))
    scoring, prompts = Scoring(window=window), PlainPacked()
    found = attend(q, cache, 1, batch, scoring, PlainShort(), prompts)
    gathered = attend(q, cache, 1, batch, scoring)
    assert torch.allclose(found, gathered, atol=1e-5)
    num_long = sum(num_tokens > 4 for _, num_tokens in lengths)
    assert [len(packed.query_ends) - 1 for packed in prompts.given] == [num_long] * bool(num_long)


def test_nothing_is_padded() -> None:
    """Also where a chunk is more than attends at once elsewhere."""
    chunks = scattered([(64, SPAN_TOKENS + 70), (0, 9)], 3)
    (packed,) = Batch.from_chunks(chunks).packed
    assert packed.query_ends.tolist() == [0, SPAN_TOKENS + 70, SPAN_TOKENS + 79]
    assert packed.key_ends.tolist() == [0, SPAN_TOKENS + 134, SPAN_TOKENS + 143]
    assert (packed.max_queries, packed.max_keys) == (SPAN_TOKENS + 70, SPAN_TOKENS + 134)
    cells = [chunk.cell(position) for chunk in chunks for position in range(chunk.stop)]
    assert packed.key_cells.tolist() == cells


@pytest.mark.parametrize("window", [0, 3])
def test_the_reference_is_the_formula(window: int) -> None:
    """Query by query, over the keys up to its own, in float64."""
    packed = packed_of(((0, 4), (5, 3)), "cpu")
    q = torch.randn(7, H, D, dtype=torch.float64)
    keys, values = torch.randn(2, 12, K, D, dtype=torch.float64)
    found = attend_packed_plainly(q, keys, values, packed, Scoring(0.3, window))
    for row, first, last in [(0, 0, 0), (1, 0, 1), (3, 0, 3), (4, 4, 9), (6, 4, 11)]:
        start = max(first, last + 1 - window) if window else first
        for head in range(H):
            own_keys, own_values = keys[start : last + 1, head // 2], values[start : last + 1, head // 2]
            weights = (0.3 * own_keys @ q[row, head]).softmax(0)
            assert torch.allclose(found[row, head], weights @ own_values)
