"""Prompts that a kernel reads in their pages attend as where pages are gathered, whatever is cached."""

import random

import pytest
import torch

from llama_herd.model.attend import attend
from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.tiling import SHORT_TOKENS, SPAN_TOKENS
from tests.model.plain_kernels import PlainShort, PlainSpans
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
    scoring, prompts = Scoring(window=window), PlainSpans()
    found = attend(q, cache, 1, batch, scoring, PlainShort(), prompts)
    gathered = attend(q, cache, 1, batch, scoring)
    assert torch.allclose(found, gathered, atol=1e-5)
    long = [num_tokens for _, num_tokens in lengths if num_tokens > SHORT_TOKENS]
    assert sum(int(spans.num_tokens.sum()) for spans in prompts.given) == sum(long)
    assert all(spans.num_tokens.max() == spans.max_tokens <= SPAN_TOKENS for spans in prompts.given)
