"""Forwards of a model: prompts whole, in chunks, and completed in a batch."""

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from tests.tiny import tiny_vocabulary

VOCAB_SIZE = len(tiny_vocabulary())


def random_ids(num_tokens: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]


def reserved(cache: Cache, owner: str, num_tokens: int) -> tuple[int, ...]:
    pages = cache.pages.reserve(owner, num_tokens)
    assert pages is not None
    return pages


def logits_after(llama: Llama, ids: list[int], cache: Cache | None = None) -> Tensor:
    """Logits (V,) after the last of `ids`, all in one chunk, in a cache of their own unless one is given."""
    cache = cache or Cache(llama.config, num_pages=8)
    pages = reserved(cache, "alone", len(ids))
    logits = llama.forward(Batch.from_chunks([Chunk(pages, 0, ids, True)]), cache)
    cache.pages.release("alone")
    return logits[0]


def prefill_by(llama: Llama, ids: list[int], chunk_tokens: int) -> Tensor:
    """Logits (V,) after the last of `ids`, which come `chunk_tokens` at a time."""
    cache = Cache(llama.config, num_pages=8)
    pages = reserved(cache, "alone", len(ids))
    for start in range(0, len(ids), chunk_tokens):
        chunk = Chunk(pages, start, ids[start : start + chunk_tokens], True)
        logits = llama.forward(Batch.from_chunks([chunk]), cache)
    return logits[0]


def greedy(llama: Llama, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """The completions of all prompts, computed in one ragged batch."""
    cache = Cache(llama.config, num_pages=8 * len(prompts))
    pages = [reserved(cache, str(row), len(prompt) + num_tokens) for row, prompt in enumerate(prompts)]
    texts = [list(prompt) for prompt in prompts]
    num_cached = [0] * len(texts)
    for _ in range(num_tokens):
        rows = zip(pages, num_cached, texts, strict=True)
        chunks = [Chunk(row_pages, start, text[start:], True) for row_pages, start, text in rows]
        drawn = llama.forward(Batch.from_chunks(chunks), cache).argmax(dim=-1).tolist()
        num_cached = [len(text) for text in texts]
        for text, token_id in zip(texts, drawn, strict=True):
            text.append(token_id)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def tensors_in(part: object) -> Iterator[Tensor]:
    """Those of a model, or of a part of one."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from tensors_in(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from tensors_in(getattr(part, field.name))
